"""Checkpoints of logical tensors: saved in one layout, loaded in any other.

In reading order, crc, files, logical, shared_errors, off_gpu and box_writer handle the bytes of
boxes. contents, engine_record, saving and background_save save; open_checkpoint, loading, dtensors
and streams load. folder and checksums handle complete folders, and deepspeed_files, sources and
weights other formats. train/ uses this package, and lesson 14 derives it.
Lesson 12.
"""

from course_lib.checkpoint.background_save import Saving, save_later
from course_lib.checkpoint.folder import last
from course_lib.checkpoint.loading import load
from course_lib.checkpoint.open_checkpoint import OpenCheckpoint, check
from course_lib.checkpoint.saving import save

__all__ = ["OpenCheckpoint", "Saving", "check", "last", "load", "save", "save_later"]
