"""The exercises of lesson 08 in the lesson's order.

They are a question about group sizes, then three functions on the judge's ranks: a norm, a mean,
and the resharding of a model's weights.
"""

from __future__ import annotations

from course_lessons.lesson_08.clip_as_one import CLIP
from course_lessons.lesson_08.reshard import RESHARD
from course_lessons.lesson_08.token_mean_step import MEAN
from course_lessons.lesson_08.which_group import GROUPS

EXERCISES = (GROUPS, CLIP, MEAN, RESHARD)
