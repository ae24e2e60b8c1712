"""The exercises of lesson 12 in the order in which the lesson lists them.

Two questions with numbers, an estimator's and two bandwidths'; then two functions whose choices are
run on the judge's ranks and measured there.
"""

from __future__ import annotations

from course_lib.classroom.checks.lesson_12.eighteen import EIGHTEEN
from course_lib.classroom.checks.lesson_12.hides import HIDES
from course_lib.classroom.checks.lesson_12.ladder import LADDER
from course_lib.classroom.checks.lesson_12.pick import PICK

EXERCISES = (EIGHTEEN, HIDES, PICK, LADDER)
