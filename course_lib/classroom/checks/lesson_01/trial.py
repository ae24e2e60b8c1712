"""What the checks of lessons 00 and 01 run on the judge's ranks: an answer, called twice.

What is kept from the first call shows in the second, and what the second writes into the result of
the first shows in that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup as Group

from course_lib.classroom.checks import bench, untouched
from course_lib.classroom.checks.finding import Finding

CALLS = ("", " in a second call")  # in words: what is said after where a trial ran
Shape = Sequence[int]


def numbers(shape: Shape, seed: int, rank: int, dtype: str = "float64") -> Tensor:
    """The numbers of one rank; in any dtype but float64 they are whole, so that sums are exact."""
    made = torch.Generator().manual_seed(seed * 1009 + rank)
    kind = getattr(torch, dtype)
    if kind == torch.float64:
        return torch.randn(*shape, generator=made, dtype=kind)
    return torch.randint(-(2**15), 2**15, tuple(shape), generator=made).to(kind) * 6


def twice(
    function: Callable,
    group: Group,
    shapes: Sequence[Sequence[Shape]],
    seed: int,
    dtype: str,
    report: str = "report",
) -> list[dict]:
    """Call `function(x, group)` on this rank's shape of each row of `shapes`; a report for each.

    `report` names the function of the bench that describes what comes back.
    """
    kept: list[object] = []

    def keep(x: Tensor, made: Group) -> object:
        kept.append(function(x, made))
        return kept[-1]

    rank = group.rank()
    reports = []
    for k, row in enumerate(shapes):
        x = numbers(row[rank], seed + k, rank, dtype)
        reports.append(getattr(bench, report)(keep, x, group))
        if spoilt(group):
            break
    for one, out in zip(reports, kept, strict=True):
        one["overwritten"] = _overwritten(one, out)
    return reports


def spoilt(group: Group) -> bool:
    """Whether a call has ended its group or replaced a part of torch: the judge says so then."""
    made = dist.is_initialized() and group in dist.distributed_c10d._world.pg_map
    return not made or bool(untouched.replaced(vars(sys.modules["__main__"])))


def _overwritten(report: dict, out: object) -> bool:
    """Whether what came back is no longer what it was when it came."""
    now = list(out) if isinstance(out, list | tuple) else [out]
    then = report["entries"] if "entries" in report else [report["out"]]
    now = [one for one in now if isinstance(one, Tensor)]
    if len(now) != len(then):
        return False
    pairs = zip(now, then, strict=True)
    return any(was is not None and not _alike(one.detach(), was) for one, was in pairs)


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


def refuse_overwritten(reports: Sequence[dict], what: str, when: str) -> None:
    """A Finding where `what` an earlier call gave has changed in a later one."""
    for rank, report in enumerate(reports):
        if report["overwritten"]:
            raise Finding(
                "one buffer",
                f"{what} that rank {rank} got back {when} has changed when your function was "
                "called again: both calls gave the same memory. Every call needs room of its own.",
            )


def refuse_second(later: bool, when: str) -> None:
    """A Finding where what is wrong is a later call: the first, with other numbers, was right."""
    if later:
        raise Finding(
            "another second call",
            f"What comes back {when} is not right; the call before it, with other numbers, was "
            "right. Does your function keep something between calls?",
        )
