"""CUDA errors after which a process cannot use its GPU: recognised by their text, and explained.

CUDA returns such an error again from every later call in the same process, so only a new process
can compute. Running out of memory is not such an error. Lesson 00 starts the ranks.
"""

from __future__ import annotations

import re

_LOST = re.compile(
    r"(?:CUDA|HIP) error: ([^\n]*(?:device-side assert|illegal (?:memory access|instruction)|"
    r"misaligned address|launch fail|launch timed out|hardware stack error|invalid program counter|"
    r"operation not supported on global/shared|uncorrectable \w+ error)[^\n]*)",
    re.IGNORECASE,
)
ADVICE = (
    "A GPU computes later than the program asks. The line named above is where the program waited "
    "for the GPU, and the mistake is in that line or in an earlier line. The usual cause is an "
    "index outside its table, such as a token id beyond the vocabulary. To see the line, run "
    "`%env CUDA_LAUNCH_BLOCKING=1` and `%ranks restart`, then the cells again. On the CPU (`%env "
    "CUDA_VISIBLE_DEVICES=` and `%ranks restart`) such an index is an IndexError."
)


def lost_gpu(text: str) -> str:
    """Return CUDA's text of an unrecoverable error, or an empty string for other errors."""
    found = _LOST.search(text)
    return found.group(1).strip() if found else ""
