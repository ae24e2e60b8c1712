"""The exercises of lesson 05 in the order in which the lesson lists them, a file for each."""

from __future__ import annotations

from course_lessons.lesson_05.kv import KV_HEADS
from course_lessons.lesson_05.qkv import SHARD_QKV
from course_lessons.lesson_05.recompute import RECOMPUTE
from course_lessons.lesson_05.streams import STREAMS

EXERCISES = (SHARD_QKV, KV_HEADS, STREAMS, RECOMPUTE)
