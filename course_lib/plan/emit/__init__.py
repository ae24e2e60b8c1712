"""A plan as files that other programs read: DeepSpeed, FSDP2, Accelerate, torchrun, SLURM.

In the order of reading: able, scripts, fsdp2, files. Lesson 15.
"""

from course_lib.plan.emit.able import KINDS, cannot, first_that_can
from course_lib.plan.emit.files import files_of

__all__ = ["KINDS", "cannot", "files_of", "first_that_can"]
