"""Offload of the parameters alone: their shards wait on the host, all else stays on the device.

What the optimizer updates is a copy on the device, in float32 for a model in 16 bits; so a model in
float32 gains nothing by it. Lesson 12 sets it beside the offload of the states.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from course_lib.zero.home import OnDevice
from course_lib.zero.offload.host import HostStore
from course_lib.zero.partition import Piece


class LentHome(OnDevice):
    """The parts of this rank on the device, as copies of shards that lie on the host."""

    def __init__(self, device: torch.device, *, master: bool):
        super().__init__(master=True)  # a copy in any case
        self.device, self.wide = device, torch.float32 if master else None

    def store(self) -> HostStore:
        return HostStore(self.device)

    @torch.no_grad()
    def keep(
        self, i: int, pieces: Sequence[Piece], shard: Tensor, store: object = None
    ) -> list[nn.Parameter]:
        dtype = self.wide or shard.dtype
        return [nn.Parameter(piece.of(shard).to(self.device, dtype, copy=True)) for piece in pieces]
