"""Trials of lessons 00 and 01 on the judge's ranks, which call an answer twice.

The second call reveals data kept from the first call, or an overwritten first result.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup as Group

from course_classroom.judge import bench, untouched
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.judge import Judge
from course_classroom.judge.looking import near
from course_classroom.judge.words import Page, Words

SAYS = Page(__file__, "trial")
POINT_TO_POINT = {"send", "recv", "barrier"}
CALLS = ("", " in a second call")  # in words, added to the description of the trial
Shape = Sequence[int]
Rows = Sequence[Sequence[Shape]]  # every rank's shape, for each call


def numbers(shape: Shape, seed: int, rank: int, dtype: str = "float64") -> Tensor:
    """Return one rank's numbers, which are integers except in float64, so that sums are exact."""
    made = torch.Generator().manual_seed(seed * 1009 + rank)
    kind = getattr(torch, dtype)
    if kind == torch.float64:
        return torch.randn(shape, generator=made, dtype=kind)
    return torch.randint(-(2**15), 2**15, tuple(shape), generator=made).to(kind) * 6


def twice(
    function: Callable, group: Group, shapes: Rows, seed: int, dtype: str, report: str = "report"
) -> list[dict]:
    """Call `function(x, group)` with this rank's shape in each row of `shapes`; report each call.

    `report` names the function of `bench` that describes the result.
    """
    outs: list[object] = []

    def keep(x: Tensor, made: Group) -> object:
        outs.append(function(x, made))
        return outs[-1]

    reports, rank = [], group.rank()
    for k, row in enumerate(shapes):
        x = numbers(row[rank], seed + k, rank, dtype)
        reports.append(getattr(bench, report)(keep, x, group))
        if spoilt(group):
            break
    return alive(reports, outs)


def spoilt(group: Group) -> bool:
    """Return True if a call ended its group or replaced parts of torch, which the judge reports."""
    made = dist.is_initialized() and group in dist.distributed_c10d._world.pg_map
    return not made or bool(untouched.replaced(vars(sys.modules["__main__"])))


def alive(reports: Sequence[dict], outs: Sequence) -> list[dict]:
    """Add `overwritten` to each report: True if the result has changed since its return."""
    for report, out in zip(reports, outs, strict=True):
        then = report["entries"] if "entries" in report else [report["out"]]
        pairs = zip(tensors_in(out), then, strict=False)  # no tensors: refused before this matters
        report["overwritten"] = any(
            was is not None and not near(now.detach(), was) for now, was in pairs
        )
    return list(reports)


def tensors_in(out: object) -> list[Tensor]:
    return [one for one in (out if isinstance(out, list | tuple) else [out]) if bench.plain(one)]


class Call(NamedTuple):
    """One call of the learner's function on a group, and its result on each rank."""

    inputs: list[Tensor]
    reports: list[dict]
    when: str
    dtype: str = "float64"
    number: int = 0

    @property
    def n(self) -> int:
        return len(self.inputs)

    @property
    def total(self) -> Tensor:
        return torch.stack(self.inputs).sum(0)


def calls(
    answer: Answer,
    judge: Judge,
    members: list[int],
    shapes: Rows,
    seed: int,
    dtype: str,
    when: Sequence[str],
    report: str = "report",
) -> list[Call]:
    """Try an answer on a group, once with each row of `shapes`; `when` describes the calls."""
    given = (shapes, seed, dtype, report)
    reports = judge.trial(answer, twice, *given, members=members, when=when[0])
    found = []
    for k, row in enumerate(shapes):
        inputs = [numbers(shape, seed + k, rank, dtype) for rank, shape in enumerate(row)]
        found.append(Call(inputs, [each[k] for each in reports], when[k] + CALLS[k], dtype, k))
    return found


def refuse_overwritten(reports: Sequence[dict], what: str, when: str) -> None:
    """Refuse an answer if `what`, the result of an earlier call, has changed in a later one."""
    SAYS.refuse_each(reports, {"one buffer": lambda r: r["overwritten"]}, what=what, when=when)


def refuse_second(later: bool, when: str) -> None:
    """Raise a Finding for an error in a later call after a right first call with other numbers."""
    SAYS.refuse({"wrong second call": later}, when=when)


def refuse_ready_made(reports: Sequence[dict], right: str) -> None:
    """Refuse a torch collective that does the exercise's work; `right` states the correct part."""
    for rank, report in enumerate(reports):
        calls = " and ".join(sorted(set(report["ops"]) - POINT_TO_POINT))
        SAYS.refuse({"ready-made collective": calls}, right=right, rank=rank, calls=calls)


@contextlib.contextmanager
def told(says: Words, entry: str, so: Callable[[Finding], bool], **about: object) -> Iterator[None]:
    """Replace a Finding raised in the `with` block with `entry` if `so(finding)` is true."""
    try:
        yield
    except Finding as finding:
        if not so(finding):
            raise
        raise says(entry, details=finding.text.split("\n", 1)[-1], **about) from None


def broke_off(finding: Finding) -> bool:
    return finding.name in ("raised", "deadlock")


def of_two_lengths(finding: Finding) -> bool:
    """Return True if two ranks disagree about a message."""
    return finding.name == "raised" and "the ranks disagree" in finding.text


def of_two_dtypes(finding: Finding) -> bool:
    """Return True if two ranks disagree about a message whose two ends have different dtypes."""
    kinds = set(re.findall(r"\) of (\w+)\[", finding.text))
    return "the ranks disagree" in finding.text and len(kinds) > 1


def listed(parts: Sequence) -> str:
    """[1, 2, 3] -> "1, 2 and 3"."""
    *first, last = map(str, parts)
    return f"{', '.join(first)} and {last}" if first else last
