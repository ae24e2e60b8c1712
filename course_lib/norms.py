"""The norm of what is sharded: every logical element once, however many ranks hold it.

A norm is a sum over *distinct* shards. A shard is counted where it is, a copy on one rank alone,
a shared parameter once. Clipping multiplies every shard by the same factor. Lesson 08.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib import collectives
from course_lib.collectives.call import Group, check_member, device_of, labelled


class Piece(NamedTuple):
    """A tensor of this rank and the axes over which its logical tensor is cut; along all others
    of the groups it is a copy. `real` are the numbers that count, where the rest is padding;
    `holders` the ranks that hold this same part, where an axis has fewer parts than ranks."""

    tensor: Tensor
    cut_over: tuple[Group, ...] = ()
    real: int | None = None
    holders: Group | None = None


def norm(
    pieces: Iterable[Piece],
    groups: Sequence[Group],
    p: float = 2.0,
    *,
    device: torch.device | None = None,
) -> Tensor:
    """The p-norm of the logical tensors together, the same on every rank; every rank calls it.

    `groups` are all groups along which the pieces are cut or copied, such as a mesh's tp and dp:
    one small all-reduce for each. `device`: from where the groups take it, if not from the pieces'.
    """
    if not (p > 0):
        raise ValueError(f"p={p} has to be above 0; math.inf is the largest of all")
    for group in groups:
        check_member(group)
    own = [piece for piece in _once(pieces) if _counts_here(piece, groups)]
    parts = [_part(piece, p) for piece in own]
    device = device or next((x.tensor.device for x in own), device_of(*groups))
    total = torch.zeros((), dtype=torch.float64, device=device)
    if parts:
        stacked = _on_one_device(parts, device)
        total = stacked.amax() if p == math.inf else stacked.sum()
    with labelled("scalars"):
        for group in groups:
            if p != math.inf:
                total = collectives.all_reduce(total, group, donated=True)
                continue
            # A maximum may leave a NaN out on its way; a sum does not.
            bad = collectives.all_reduce(total.isnan().to(total.dtype), group)
            most = collectives.all_reduce(total.nan_to_num(0.0, math.inf), group, "max")
            total = torch.where(bad > 0, math.nan, most)
    return total if p == math.inf else total ** (1.0 / p)


@torch.no_grad()
def clip(pieces: Sequence[Piece], groups: Sequence[Group], most: float, p: float = 2.0) -> Tensor:
    """Scale the pieces in place so that their norm together is at most `most`; return the norm
    before. The factor is torch's: most / (norm + 1e-6), where that is below 1."""
    if not most > 0:
        raise ValueError(f"most={most} has to be above 0; leave clipping out to switch it off")
    pieces = list(pieces)
    total = norm(pieces, groups, p)
    factor = (most / (total + 1e-6)).clamp(max=1.0)
    for piece in _once(pieces):
        piece.tensor.mul_(factor)  # of 0 dims: it does not widen the tensor, nor is it rounded
    return total


def _once(pieces: Iterable[Piece]) -> list[Piece]:
    """A tensor that is named twice, such as a tied weight's gradient, is one."""
    seen: dict[int, Piece] = {}
    for piece in pieces:
        seen.setdefault(id(piece.tensor), piece)
    return list(seen.values())


def _counts_here(piece: Piece, groups: Sequence[Group]) -> bool:
    """What is replicated along an axis counts on the first rank of that axis alone."""
    names = {group.group_name for group in piece.cut_over}
    summed = {group.group_name for group in groups}
    if not names <= summed:
        raise ValueError(
            f"a piece of shape {tuple(piece.tensor.shape)} is cut over {len(names)} groups, and "
            f"{len(names - summed)} of them are not in groups=: the other ranks' parts would be "
            "left out. Pass all groups along which a piece is cut or copied, on every rank the same"
        )
    if piece.holders is not None and piece.holders.rank() != 0:
        return False
    return all(group.group_name in names or group.rank() == 0 for group in groups)


def _on_one_device(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """(parts,) numbers. Those of offloaded gradients leave the host together: each copy waits."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for part in parts:
        by_device.setdefault(part.device, []).append(part)
    return torch.cat([torch.stack(some).to(device) for some in by_device.values()])


def _part(piece: Piece, p: float) -> Tensor:
    x = piece.tensor.detach()
    x = x.reshape(-1)[: piece.real] if piece.real is not None else x
    if x.numel() == 0:
        return torch.zeros((), dtype=torch.float64, device=x.device)
    wide = x if x.dtype == torch.float64 else x.float()
    if p == math.inf:
        return wide.abs().amax().double()
    size = torch.linalg.vector_norm(wide, p, dtype=wide.dtype).double()
    return size**p
