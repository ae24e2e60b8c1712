"""Every bit of every tensor held against the checkpoint's CRC-32s, by ranks that have parts of it.

Each rank has the shares of the boxes that it answers for; added up over the ranks they are the CRC
of the tensor, at whatever layout it was written and is read. Lesson 14.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from course_lib.checkpoint.files import FileSet
from course_lib.pretrained.header import CheckpointError

TENSORS = "tensors.json"


class Counted(Protocol):
    """What has written or read boxes of the tensors of one set of files."""

    shares: Mapping[str, int]
    elements: Mapping[str, int]


Report = Mapping[str, Mapping[str, int]]  # "shares" and "elements" by tensor


def report_of(counted: Counted) -> dict[str, dict[str, int]]:
    return {"shares": dict(counted.shares), "elements": dict(counted.elements)}


def added(reports: Sequence[Report]) -> dict[str, dict[str, int]]:
    """Shares XORed and elements added, of several ranks."""
    shares: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for report in reports:
        for name, share in report["shares"].items():
            shares[name] ^= share
        elements.update(report["elements"])
    return {"shares": dict(shares), "elements": dict(elements)}


def vouched(report: Report, files: FileSet) -> dict[str, str]:
    """The CRC-32 of each tensor of a set, once it is known that every element was written, and
    once."""
    for name, slot in files.slots.items():
        count, written = math.prod(slot.shape), report["elements"].get(name, 0)
        if written != count:
            raise CheckpointError(
                f"{name}: the ranks wrote {written} of its {count} elements: is the model the same "
                "on all of them, and sharded as its layers say?"
            )
    return {name: f"{report['shares'].get(name, 0):08x}" for name in files.slots}
