"""Memory sizes as people write them, such as 24, 24GB or 22.4GiB. Lesson 13."""

from __future__ import annotations

import math
import re

UNITS = {"": 10**9, "GB": 10**9, "MB": 10**6, "KB": 10**3, "TB": 10**12, "B": 1}
UNITS |= {"GIB": 1 << 30, "MIB": 1 << 20, "KIB": 1 << 10, "TIB": 1 << 40, "G": 10**9, "M": 10**6}


def nbytes(text: str, name: str) -> int:
    """Convert a written size, such as 22.4GiB or 50MB, to bytes; 24 means 24GB."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-z]*)\s*", text)
    unit = None if match is None else UNITS.get(match[2].upper())
    if unit is None:
        raise ValueError(f"{name} {text!r} is not a size. Write 24, 24GB, 22.4GiB or 50MB")
    size = float(match[1]) * unit
    if not (size >= 1 and math.isfinite(size)):
        raise ValueError(f"{name} {text} is {size:g} bytes but must be above 0")
    return int(size)
