"""`python -m course_lib.classroom.doctor.product DEVICE...`: a product on each device, compared.

Prints one JSON object: the device, and what is wrong with it (empty: nothing). A process of its
own, because a broken GPU can hang whoever touches it. No lesson derives it.
"""

from __future__ import annotations

import json
import sys


def trouble(device: str) -> str:
    """What is wrong with a device; empty where it computes."""
    import torch

    try:
        # Small whole numbers: the product is exact in any order and any precision of the units.
        a = torch.arange(64 * 48).reshape(64, 48) % 7
        b = torch.arange(48 * 32).reshape(48, 32) % 5
        there = a.to(device, torch.float32) @ b.to(device, torch.float32)
        right = bool((there.cpu() == (a @ b).float()).all())
    except (RuntimeError, AssertionError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return "" if right else "the product is wrong"


if __name__ == "__main__":
    print(json.dumps({device: trouble(device) for device in sys.argv[1:]}))
