"""Grading of submissions: each is judged in separate processes, under limits.

`intact.py` checks the exercises, `discover.py` finds the submissions, `reading.py` reads their
answers, `supervisor.py` enforces their limits, and `marking.py` collects the rows. This is for
instructors only.
"""
