"""Text from weights that no rank holds whole: ZeRO's stage 3 streams them, beside a tp group.

In the order of reading: text, cost, seconds, with_deepspeed. `zero.inference` shards the
model; here are the prompts of all ranks, what a word costs, and the same in DeepSpeed, which is
imported where it is used. Lesson 14.
"""

from course_lib.inference.cost import break_even_rows, streamed_bytes
from course_lib.inference.seconds import (
    Forward,
    fit,
    meeting_rows,
    seconds_by_rows,
)
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
