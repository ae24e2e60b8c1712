"""Hugging Face weights in and out, slice by slice: a checkpoint describes logical tensors.

In the order of reading: header, reader (files); config, sketch, names (what is what); load,
writer, save. What lesson 14 writes goes on from here. Lesson 08.
"""

from course_lib.pretrained.config import from_transformers, read_config, to_transformers
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.load import from_pretrained, load
from course_lib.pretrained.reader import Checkpoint
from course_lib.pretrained.save import save

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "from_pretrained",
    "from_transformers",
    "load",
    "read_config",
    "save",
    "to_transformers",
]
