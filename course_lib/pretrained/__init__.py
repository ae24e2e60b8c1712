"""Loading and saving of Hugging Face weights, slice by slice, as logical tensors.

In reading order: header and reader (files), config, sketch and names (translation), load, writer,
save. Lesson 14's checkpoints build on this. Lesson 08.
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
