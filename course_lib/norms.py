"""The norm of sharded tensors: every logical element counts once, even if several ranks hold it.

A norm is a sum over *distinct* shards. A shard counts on its rank, a replicated tensor on only one
rank, and a shared parameter once. Clipping multiplies every shard by the same factor. Lesson 08.
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
    """A tensor of this rank, and the groups over which its logical tensor is sharded; it is
    replicated over all others. `real` is the number of elements without padding. `holders` are the
    ranks with the same shard, if an axis has fewer shards than ranks."""

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
    """Return the p-norm of all logical tensors, the same on every rank; every rank must call it.

    `groups` are all groups over which pieces are sharded or replicated, such as a mesh's tp and dp.
    Each costs one small all-reduce. `device` is for the messages (by default, the pieces' device).
    """
    if not (p > 0):
        raise ValueError(f"p={p} must be above 0; math.inf gives the maximum")
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
            # A maximum may lose a NaN on its way, but a sum does not.
            bad = collectives.all_reduce(total.isnan().to(total.dtype), group)
            most = collectives.all_reduce(total.nan_to_num(0.0, math.inf), group, "max")
            total = torch.where(bad > 0, math.nan, most)
    return total if p == math.inf else total ** (1.0 / p)


@torch.no_grad()
def clip(pieces: Sequence[Piece], groups: Sequence[Group], most: float, p: float = 2.0) -> Tensor:
    """Scale the pieces in place to a total norm of at most `most`, and return the norm before. The
    factor is the same as in torch: most / (norm + 1e-6) if this is below 1."""
    if not most > 0:
        raise ValueError(f"most={most} must be above 0; to switch clipping off, do not call clip")
    pieces = list(pieces)
    total = norm(pieces, groups, p)
    factor = (most / (total + 1e-6)).clamp(max=1.0)
    for piece in _once(pieces):
        piece.tensor.mul_(factor)  # 0 dims: it neither widens the tensor nor is rounded
    return total


def _once(pieces: Iterable[Piece]) -> list[Piece]:
    """Remove duplicate pieces, such as the second entry of a tied weight's gradient."""
    seen: dict[int, Piece] = {}
    for piece in pieces:
        seen.setdefault(id(piece.tensor), piece)
    return list(seen.values())


def _counts_here(piece: Piece, groups: Sequence[Group]) -> bool:
    """Return True if the piece counts on this rank; replicated pieces count only on the first."""
    names = {group.group_name for group in piece.cut_over}
    summed = {group.group_name for group in groups}
    if not names <= summed:
        raise ValueError(
            f"a piece of shape {tuple(piece.tensor.shape)} is sharded over {len(names)} groups, "
            f"but {len(names - summed)} of them are not in groups=, so other ranks' parts would be "
            "left out. Pass all groups of the pieces, sharded or replicated, on every rank"
        )
    if piece.holders is not None and piece.holders.rank() != 0:
        return False
    return all(group.group_name in names or group.rank() == 0 for group in groups)


def _on_one_device(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Stack scalars on one device; scalars from each device move together, with a single wait."""
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
