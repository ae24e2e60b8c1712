"""The format of byte counts in this package: exact, with a rounded value where it helps.

Units are decimal throughout the course: 1 MB is 1,000,000 bytes. Lesson 01 introduces it.
"""

from __future__ import annotations

import torch.distributed as dist


def rounded(nbytes: int) -> str:
    """Round a byte count for display: 153243656 → "153.2 MB"."""
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"


def in_bytes(nbytes: int) -> str:
    """Format exactly, and add a rounded value if it is shorter: "153,243,656 bytes (153.2 MB)"."""
    exact = f"{nbytes:,} byte{'' if nbytes == 1 else 's'}"
    return exact if abs(nbytes) < 1000 else f"{exact} ({rounded(nbytes)})"


def this_rank() -> str:
    """Return "rank 1", or "this process" if no group was started."""
    if dist.is_available() and dist.is_initialized():
        return f"rank {dist.get_rank()}"
    return "this process"
