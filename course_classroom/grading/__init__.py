"""Grading of what learners hand in: each submission judged in processes of its own, under limits.

`intact.py` says by which exercises, `discover.py` finds the submissions, `reading.py` what they
answer, `supervisor.py` keeps each within its limits, `marking.py` gathers the rows. For
instructors; no lesson derives it.
"""
