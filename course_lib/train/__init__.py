"""The program that trains: `python -m course_lib.train --help`, or `course train` on this host.

`program.py` is read first: mesh, model, optimizer, engine, loop. Behind it, in the order of
reading: options, record, checks, model, text, curve, measured, flops, report, stop, lock, journal,
meeting, entry, launch. Lesson 12.
"""
