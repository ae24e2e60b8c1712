"""Checkpoints of logical tensors: saved by one layout, gone on with by any other.

In the order of reading: crc, files, logical, agreed, off_gpu, pen (bytes of boxes); planned,
recorded, saving, later; saved, loading, dtensors; streams; folder, sums (what is whole);
deepspeed_files, sources, weights (from others, to others). train/ uses it, lesson 14 derives it.
Lesson 12.
"""

from course_lib.checkpoint.folder import last
from course_lib.checkpoint.later import Saving, save_later
from course_lib.checkpoint.loading import load
from course_lib.checkpoint.saved import Saved, check
from course_lib.checkpoint.saving import save

__all__ = ["Saved", "Saving", "check", "last", "load", "save", "save_later"]
