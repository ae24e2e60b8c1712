"""Shards of a tensor: the rule for splits, the notation with its checker, and boxes of shards.

Reading order: cut, notation, boxes, errors, comparison, check. The course uses no other rule for
sharding. Lesson 02.
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
