"""Every bit of every tensor held against the checkpoint's CRC-32s, by ranks that have parts of it.

Each rank has the shares of the boxes that it answers for; added up over the ranks they are the CRC
of the tensor, at whatever layout it was written and is read. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

from course_lib.checkpoint.files import FileSet
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group, device_of, labelled
from course_lib.pretrained.header import CheckpointError

TENSORS = "tensors.json"


class Counted(Protocol):
    """What has written or read boxes of the tensors of one set of files."""

    files: FileSet
    shares: Mapping[str, int]
    elements: Mapping[str, int]


class Vouched(NamedTuple):
    """CRC-32 and elements that were counted, of every tensor, over all ranks."""

    crc: dict[str, int]
    elements: dict[str, int]

    @classmethod
    def of(
        cls, reports: Sequence[Mapping[str, Mapping[str, int]]], names: Sequence[str]
    ) -> Vouched:
        """Added up from every rank's shares and elements."""
        crc, elements = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        for report in reports:
            for name, share in report["shares"].items():
                crc[name] ^= share
            for name, count in report["elements"].items():
                elements[name] += count
        return cls(crc, elements)

    def as_text(self, files: FileSet) -> dict[str, str]:
        """Hexadecimal CRCs, once every tensor is known to be written, each element once."""
        for name, slot in files.slots.items():
            count = 1
            for size in slot.shape:
                count *= size
            if self.elements[name] != count:
                raise CheckpointError(
                    f"{name}: the ranks wrote {self.elements[name]} of its {count} elements: is "
                    "the model the same on all of them, and sharded as its layers say?"
                )
        return {name: f"{self.crc[name]:08x}" for name in files.slots}


def added_up(counted: Counted, groups: Sequence[Group]) -> Vouched:
    """What all ranks have written or read of the same files; every rank calls it."""
    names = list(counted.files.slots)
    own = [[counted.shares.get(n, 0), counted.elements.get(n, 0)] for n in names]
    table = torch.tensor(own, dtype=torch.int64).reshape(-1, 2)  # (tensors, 2)
    device = device_of(*groups)
    for group in groups:
        with labelled("scalars"):
            every = all_gather(table.to(device)[None], group).cpu()  # (n, tensors, 2)
        table = every[0]
        for other in every[1:]:
            crcs = table[:, 0] ^ other[:, 0]
            table = torch.stack((crcs, table[:, 1] + other[:, 1]), 1)
    crcs, elements = table.unbind(1)
    return Vouched(
        dict(zip(names, crcs.tolist(), strict=True)),
        dict(zip(names, elements.tolist(), strict=True)),
    )
