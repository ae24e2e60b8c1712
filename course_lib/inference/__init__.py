"""Text from sharded weights: streaming with ZeRO's stage 3, compared with a tp group.

Reading order: text, cost, seconds, with_deepspeed. `zero.inference` shards the model. This package
handles the prompts of all ranks, a token's cost, and the same task in DeepSpeed, which is imported
only where it is used. Lesson 14.
"""

from course_lib.inference.cost import break_even_rows, streamed_bytes
from course_lib.inference.seconds import Forward, fit, meeting_rows, seconds_by_rows
from course_lib.inference.text import generate

__all__ = [
    "Forward",
    "break_even_rows",
    "fit",
    "generate",
    "meeting_rows",
    "seconds_by_rows",
    "streamed_bytes",
]
