"""A DeepSpeed checkpoint of ZeRO stage 1, 2 or 3 read as logical tensors, without DeepSpeed.

In reading order, the modules are stand_ins (names allowed in pickles), archive (one file, by byte
ranges), folder (a step's files), states (the ranks' parts) and reader (all parts). Lesson 14.
"""

from course_lib.checkpoint.deepspeed_files.folder import is_one
from course_lib.checkpoint.deepspeed_files.reader import DeepSpeedFiles
from course_lib.checkpoint.deepspeed_files.stand_ins import STAND_INS

__all__ = ["STAND_INS", "DeepSpeedFiles", "is_one"]
