"""Comparisons between ranks: replicas that should be equal, and partial sums that should differ.

`Y[b, h]` claims equal values on every rank of tp, but `Y[b, h]{tp}` claims that an all-reduce over
tp still follows. Lesson 02 shows that only values can distinguish the two, not shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import all_gather, broadcast
from course_lib.collectives.agreement import who_says
from course_lib.layout.errors import LayoutError
from course_lib.layout.notation import Layout


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh as this rank sees it; `group` is None if only numbers were passed."""

    name: str
    rank: int
    world: int
    group: dist.ProcessGroup | None


def agree(axes: dict[str, Axis], problem: Exception | None) -> None:
    """Report a problem of this rank to every rank of the groups; either all raise, or none."""
    groups = [axis.group for axis in axes.values() if axis.group is not None]
    reports = who_says(None if problem is None else str(problem), groups)
    if problem is not None:
        raise problem
    if reports:
        raise LayoutError(f"another rank found: {reports[0][1]}")


def compare(layout: Layout, mine: Tensor, axes: dict[str, Axis], tolerance: float | None) -> None:
    """Compare this rank's values of one tensor with those of other ranks, axis by axis."""
    problem = None
    for axis in axes.values():
        if axis.group is None or axis.world == 1 or axis.name in layout.cut_axes:
            continue
        gaps, largest = _gaps(mine, axis)
        allowed = _allowed(mine, tolerance) * largest
        different = [rank for rank, gap in enumerate(gaps) if not gap <= allowed]
        if axis.name in layout.owed:
            if not different and largest > 0:
                whole = str(Layout(layout.name, layout.dims))
                problem = problem or LayoutError(
                    f"{layout} is declared a partial sum over {axis.name}, but its "
                    f"{axis.world} ranks hold the same values. Was it all-reduced already? Then "
                    f"write {whole}. A second all-reduce makes it {axis.world} times too large"
                )
        elif different:
            worst = max(different, key=lambda rank: gaps[rank])
            problem = problem or LayoutError(
                f"{layout.name} is declared replicated over {axis.name}, but the ranks of "
                f"{axis.name} differ: rank {worst} from rank 0 by up to {gaps[worst]:.3g} (largest "
                f"value {largest:.3g}). Is it a partial sum, still to be all-reduced? Then write "
                f"{Layout(layout.name, layout.dims, (*layout.owed, axis.name))}. Is a dim "
                f"sharded? Then mark it with @{axis.name}. Otherwise the replicas have drifted "
                f"apart"
            )
    agree(axes, problem)


def _gaps(mine: Tensor, axis: Axis) -> tuple[list[float], float]:
    """Return each rank's largest difference from the axis's rank 0, and the largest value."""
    mine = mine.contiguous()
    first = broadcast(mine, axis.group, src=0)
    wide = torch.complex128 if mine.is_complex() else torch.float64
    here, there = mine.to(wide), first.to(wide)
    same = (here == there) | (here.isnan() & there.isnan())
    gap = torch.where(same, 0.0, (here - there).abs().nan_to_num(torch.inf, torch.inf))
    size = here.abs().nan_to_num(0.0, 0.0)
    both = torch.stack([part.max() if part.numel() else part.sum() for part in (gap, size)])
    table = all_gather(both[None], axis.group)  # (world, 2)
    return table[:, 0].tolist(), float(table[:, 1].max())


def _allowed(mine: Tensor, tolerance: float | None) -> float:
    if tolerance is not None:
        return tolerance
    return 8 * torch.finfo(mine.dtype).eps if mine.dtype.is_floating_point else 0.0
