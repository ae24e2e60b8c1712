"""Changes to weights from outside, by a load or by hand, from which the next step starts.

The optimizer may use a copy of the model's weights: in float32, on the host, or in files. Such a
copy takes over all changes made to the model since the last step. Lesson 09.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from course_lib.collectives.agreement import checksum
from course_lib.meta import begins_at, numbers

CHUNK, CHUNK_ON_GPU = 1 << 20, 1 << 24  # elements compared at once, to bound the memory


@torch.no_grad()
def take_over(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Update each copy where its rounded elements differ from the shown ones; all other elements
    keep the digits that rounding hides. The host waits only once, for any number of pairs."""
    chunks = [both for pair in pairs for both in _side_by_side(*pair)]
    if not chunks:
        return
    same = torch.stack([_alike(copy, shown).all() for copy, shown in chunks])
    for (copy, shown), unchanged in zip(chunks, numbers(same, [True] * len(chunks)), strict=True):
        if not unchanged:
            shown = shown.to(copy.device)
            copy.copy_(torch.where(_alike(copy, shown), copy, shown.to(copy.dtype)))


def _side_by_side(copy: Tensor, shown: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    size = CHUNK_ON_GPU if copy.is_cuda and shown.is_cuda else CHUNK
    return zip(_chunks(copy.detach(), size), _chunks(shown.detach(), size), strict=True)


def _alike(copy: Tensor, shown: Tensor) -> Tensor:
    return copy.to(shown.dtype) == shown.to(copy.device)


class Untouched:
    """Shards as an update has left them, recorded by checksums to detect later writes.

    A copy on the host or in a file is then compared only with shards that have changed. Without
    this, every step would copy all shards back from a GPU.
    """

    def __init__(self) -> None:
        self._sums: list[list[int]] | None = None

    def note(self, shards: Sequence[Tensor]) -> None:
        """Record the shards in their current state as untouched."""
        self._sums = _checksums(shards)

    def changed(self, shards: Sequence[Tensor]) -> list[bool]:
        """Return True for each shard that has changed since `note`; without a note, all True."""
        if self._sums is None:
            return [True] * len(shards)
        now = _checksums(shards)
        return [sums != before for sums, before in zip(now, self._sums, strict=True)]


def _checksums(shards: Sequence[Tensor]) -> list[list[int]]:
    """Return checksums as Python numbers, which use no tensor memory. The host waits once."""
    return torch.stack([checksum(x) for x in shards]).tolist() if shards else []


@torch.no_grad()
def bring_back(name: str, parameter: nn.Parameter, place: Tensor) -> None:
    """Move a parameter back to its place, with the elements that `p.data = x` gave it."""
    if begins_at(parameter) == begins_at(place):
        return
    if parameter.shape != place.shape:
        raise RuntimeError(
            f"{name} was given a tensor of shape {tuple(parameter.shape)} as its data, but is of "
            f"shape {tuple(place.shape)}; nothing was updated"
        )
    parameter.data = place.copy_(parameter.data)


def _chunks(x: Tensor, size: int) -> tuple[Tensor, ...]:
    """Split a tensor into views; a tensor that is not contiguous is one chunk."""
    return x.view(-1).split(size) if x.is_contiguous() else (x,)
