"""The exercises of lesson 05 in the lesson's order, with a file for each."""

from __future__ import annotations

from course_lessons.lesson_05.dropout_streams import STREAMS
from course_lessons.lesson_05.kv_heads_on_ranks import KV_HEADS
from course_lessons.lesson_05.recompute_dropout import RECOMPUTE
from course_lessons.lesson_05.shard_qkv import SHARD_QKV

EXERCISES = (SHARD_QKV, KV_HEADS, STREAMS, RECOMPUTE)
