"""The exercises of lesson 08 in the order in which the lesson lists them.

A question with numbers about groups, then three functions on the judge's ranks: a norm, a mean, and
a cut model's weights brought from one number of ranks to another.
"""

from __future__ import annotations

from course_lessons.lesson_08.clip_as_one import CLIP
from course_lessons.lesson_08.reshard import RESHARD
from course_lessons.lesson_08.token_mean_step import MEAN
from course_lessons.lesson_08.which_group import GROUPS

EXERCISES = (GROUPS, CLIP, MEAN, RESHARD)
