"""Checks of exercises, hints and predictions: what a notebook imports from here, and nothing more.

One file a lesson says what right means, `frame.py` what all checks have in common. From lesson 01
on.
"""

from course_lib.classroom.checks.desk import cell_of, check, hint, measured, my_progress, predict

__all__ = ["cell_of", "check", "hint", "measured", "my_progress", "predict"]
