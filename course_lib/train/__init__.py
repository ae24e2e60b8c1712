"""The program that trains: `python -m course_lib.train --help`, or `course train` on this host.

Lesson 12.
"""
