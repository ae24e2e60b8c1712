"""Checkpoints of logical tensors: saved by one layout, gone on with by any other.

In the order of reading: crc, files, logical, shared_errors, off_gpu, box_writer (bytes of boxes);
contents, engine_record, saving, background_save; open_checkpoint, loading, dtensors; streams;
folder, checksums (what is whole);
deepspeed_files, sources, weights (from others, to others). train/ uses it, lesson 14 derives it.
Lesson 12.
"""

from course_lib.checkpoint.background_save import Saving, save_later
from course_lib.checkpoint.folder import last
from course_lib.checkpoint.loading import load
from course_lib.checkpoint.open_checkpoint import OpenCheckpoint, check
from course_lib.checkpoint.saving import save

__all__ = ["OpenCheckpoint", "Saving", "check", "last", "load", "save", "save_later"]
