"""Several hosts: two hosts on one machine with a link that can be cut, and their ranks' errors.

In reading order: two_hosts, starter, on_hosts. Lesson 15.
"""
