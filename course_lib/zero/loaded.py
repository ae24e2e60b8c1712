"""Weights that were changed from outside, by a load or by hand: the next step starts from them.

The optimizer may work on a copy of what the model computes with: in float32, on the host, in files.
Such a copy takes over what has been written to the model since the last step. Lesson 09.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_lib.meta import begins_at, numbers

CHUNK, CHUNK_ON_GPU = 1 << 20, 1 << 24  # elements compared at once: what bounds the memory
SUMMED, SUMMED_ON_GPU = 1 << 15, 1 << 20  # and those summed at once, at most: each takes 24 bytes


@torch.no_grad()
def take_over(copy: Tensor, shown: Tensor) -> None:
    """Give `copy` the elements of `shown` that differ from its own, rounded as those are; all other
    elements keep what the rounding hides."""
    size = CHUNK_ON_GPU if copy.is_cuda and shown.is_cuda else CHUNK
    both = _chunks(copy.detach(), size), _chunks(shown.detach(), size)
    for own, new in zip(*both, strict=True):
        new = new.to(own.device)
        same = own.to(new.dtype) == new
        if not numbers(same.all(), True):
            own.copy_(torch.where(same, own, new.to(own.dtype)))


@torch.no_grad()
def checksum(x: Tensor) -> Tensor:
    """Two whole numbers of a tensor's bits: one changes with any single element, the other also
    when two elements change places."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    x = torch.view_as_real(x.detach()) if x.is_complex() else x.detach()
    total = torch.zeros(2, dtype=torch.int64, device=x.device)
    size = at_once(x.numel(), SUMMED_ON_GPU if x.is_cuda else SUMMED)
    odd = torch.arange(1, 2 * size, 2, device=x.device)  # a product with it loses no bit
    for number, part in enumerate(_chunks(x.contiguous(), size)):
        bits = part.reshape(-1).view(kinds[part.element_size()]).long()
        mixed = (bits >> 17).bitwise_xor_(bits).mul_(odd[: bits.numel()]).mul_(0x9E3779B1)
        total += torch.stack((bits.sum(), mixed.sum() * (2 * number + 1)))
    return total


def at_once(numel: int, most: int = SUMMED) -> int:
    """How many elements of a tensor are summed at once: the sum of a small one needs little."""
    return min(most, 1024 + numel // 64)


def summing(numel: int) -> int:
    """Bytes that a checksum needs: of what is summed at once, three whole numbers an element."""
    once = at_once(numel)
    return 8 * (once + 2 * min(once, numel))


@torch.no_grad()
def bring_back(name: str, parameter: nn.Parameter, place: Tensor) -> None:
    """Have a parameter lie in its place again, with the elements that `p.data = x` gave it."""
    if begins_at(parameter) == begins_at(place):
        return
    if parameter.shape != place.shape:
        raise RuntimeError(
            f"{name} was given a tensor of shape {tuple(parameter.shape)} as its data, and is of "
            f"shape {tuple(place.shape)}; nothing was updated"
        )
    parameter.data = place.copy_(parameter.data)


def _chunks(x: Tensor, size: int) -> tuple[Tensor, ...]:
    """Parts of a tensor that share its memory; all of it where its elements do not lie in a row."""
    return x.view(-1).split(size) if x.is_contiguous() else (x,)
