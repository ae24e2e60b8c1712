"""Checkpoints of logical tensors: saved by one layout, gone on with by any other.

In the order of reading: crc, files, logical, pen (bytes of boxes); planned, checked, saving; saved,
recorded, loading; agreed, folder, sums (what is whole). train/ uses it, lesson 14 derives it.
Lesson 12.
"""

from course_lib.checkpoint.folder import last
from course_lib.checkpoint.loading import load
from course_lib.checkpoint.saved import Saved, check
from course_lib.checkpoint.saving import save

__all__ = ["Saved", "check", "last", "load", "save"]
