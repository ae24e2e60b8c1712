"""Where the shards of a tensor are: the rule, the notation with its checker, boxes of a shard.

Read in this order: cut, notation, boxes, errors, comparison, check. No other rule for
sharding is used anywhere in the course. Lesson 02.
"""

from __future__ import annotations

from course_lib.layout.boxes import Box, box, flat_boxes
from course_lib.layout.check import check
from course_lib.layout.cut import FlatCut, cut, flat, heads, kv_heads, span
from course_lib.layout.errors import LayoutError
from course_lib.layout.notation import Dim, Layout, Statement

__all__ = [
    "Box", "Dim", "FlatCut", "Layout", "LayoutError", "Statement",
    "box", "check", "cut", "flat", "flat_boxes", "heads", "kv_heads", "span",
]  # fmt: skip
