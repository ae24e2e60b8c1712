"""The runs of bytes that a box fills in a file, and the ranks' reports about the runs they handled.

Each rank computes the checksum shares of its boxes. The XOR of all ranks' shares is the tensor's
CRC, in whatever layout it is written or read. Lesson 14.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from course_lib.checkpoint.crc import Shares
from course_lib.layout import Box
from course_lib.pretrained.header import CheckpointError, FileSlot
from course_lib.pretrained.writer import FileSet

SHARD_BYTES = 5e9  # per file, as transformers writes them
TENSORS = "tensors.json"
Report = Mapping[str, Mapping[str, int]]  # "shares" and "elements" by tensor


def runs(shape: Sequence[int], box: Box) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of the element runs that a box fills in a row-major tensor."""
    d = len(shape)
    while d and box.size[d - 1] == shape[d - 1]:  # dims that the box covers fully join the run
        d -= 1
    inner = math.prod(shape[d:])
    if d == 0:
        yield 0, inner
        return
    strides = [math.prod(shape[k + 1 :]) for k in range(d)]
    length = box.size[d - 1] * inner
    first = box.offset[d - 1] * inner
    outer = [
        range(o * stride, (o + size) * stride, stride)
        for o, size, stride in zip(box.offset[: d - 1], box.size, strides, strict=False)
    ]
    for starts in itertools.product(*outer):
        yield first + sum(starts), length


class CountedRuns:
    """The checksum shares and counts of the bytes written or read in one set of files."""

    def __init__(self) -> None:
        self.shares: Counter[str] = Counter()  # of each tensor's CRC-32
        self.elements: Counter[str] = Counter()
        self.bytes = 0
        self._crc = Shares()

    def count(self, name: str, slot: FileSlot, pieces: Iterable[tuple[int, memoryview]]) -> None:
        """Add the checksum share of a tensor's (start, bytes) pieces, sorted by start."""
        self.shares[name] ^= self._crc.of(pieces, slot.stop - slot.start)


def report_of(counted: CountedRuns) -> dict[str, dict[str, int]]:
    return {"shares": dict(counted.shares), "elements": dict(counted.elements)}


def added(reports: Sequence[Report]) -> dict[str, dict[str, int]]:
    """Combine several ranks' reports: XOR the shares and add the element counts."""
    shares: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for report in reports:
        for name, share in report["shares"].items():
            shares[name] ^= share
        elements.update(report["elements"])
    return {"shares": dict(shares), "elements": dict(elements)}


def of_all(reports: Sequence[Mapping[str, Report]]) -> dict[str, dict]:
    """Combine several ranks' reports about each set of files."""
    return {stem: added([report[stem] for report in reports]) for stem in reports[0]}


def vouched(report: Report, files: FileSet) -> dict[str, str]:
    """Return the CRC-32 of each tensor of a set, after checking that every element was written
    exactly once."""
    for name, slot in files.slots.items():
        count, written = math.prod(slot.shape), report["elements"].get(name, 0)
        if written != count:
            raise CheckpointError(
                f"{name}: the ranks wrote {written} of its {count} elements. The model must be the "
                "same on all ranks, and sharded as its layers say"
            )
    return {name: f"{report['shares'].get(name, 0):08x}" for name in files.slots}
