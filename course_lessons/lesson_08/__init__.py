"""The exercises of lesson 08 in the order in which the lesson lists them.

A question with numbers about groups, then three functions on the judge's ranks: a norm, a mean, and
a cut model's weights brought from one number of ranks to another.
"""

from __future__ import annotations

from course_lessons.lesson_08.clip import CLIP
from course_lessons.lesson_08.groups import GROUPS
from course_lessons.lesson_08.mean import MEAN
from course_lessons.lesson_08.reshard import RESHARD

EXERCISES = (GROUPS, CLIP, MEAN, RESHARD)
