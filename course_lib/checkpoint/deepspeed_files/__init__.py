"""A DeepSpeed checkpoint of ZeRO stage 1, 2 or 3 read as logical tensors, without DeepSpeed.

In the order of reading: stand_ins (what its pickles may name), archive (one file, by byte ranges),
folder (which files), states (what a rank has saved), reader (the whole). Lesson 14.
"""

from course_lib.checkpoint.deepspeed_files.folder import is_one
from course_lib.checkpoint.deepspeed_files.reader import DeepSpeedFiles
from course_lib.checkpoint.deepspeed_files.stand_ins import STAND_INS

__all__ = ["STAND_INS", "DeepSpeedFiles", "is_one"]
