"""Text from weights that no rank holds whole: ZeRO's stage 3 streams them, beside a tp group.

In the order of reading: rows, text, cost, seconds, with_deepspeed. `zero.inference` shards the
model; here are the prompts of all ranks, what a word costs, and the same in DeepSpeed, which is
imported where it is used. Lesson 14.
"""

from course_lib.inference.cost import break_even_rows, streamed_bytes, streamed_memory
from course_lib.inference.rows import all_rows, own_rows
from course_lib.inference.seconds import (
    Forward,
    fit,
    meeting_rows,
    seconds_by_rows,
    throughput_of,
)
from course_lib.inference.text import generate

__all__ = [
    "Forward",
    "all_rows",
    "break_even_rows",
    "fit",
    "generate",
    "meeting_rows",
    "own_rows",
    "seconds_by_rows",
    "streamed_bytes",
    "streamed_memory",
    "throughput_of",
]
