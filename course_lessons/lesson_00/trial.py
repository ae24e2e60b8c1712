"""What the checks of lessons 00 and 01 run on the judge's ranks: an answer, called twice.

What is kept from the first call shows in the second, what the second writes over in the first.
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
CALLS = ("", " in a second call")  # in words: what is said after where a trial ran
Shape = Sequence[int]
Rows = Sequence[Sequence[Shape]]  # of each call, every rank's shape


def numbers(shape: Shape, seed: int, rank: int, dtype: str = "float64") -> Tensor:
    """The numbers of one rank; in any dtype but float64 they are whole, so that sums are exact."""
    made = torch.Generator().manual_seed(seed * 1009 + rank)
    kind = getattr(torch, dtype)
    if kind == torch.float64:
        return torch.randn(shape, generator=made, dtype=kind)
    return torch.randint(-(2**15), 2**15, tuple(shape), generator=made).to(kind) * 6


def twice(
    function: Callable, group: Group, shapes: Rows, seed: int, dtype: str, report: str = "report"
) -> list[dict]:
    """Call `function(x, group)` on this rank's shape of each row of `shapes`; a report for each.

    `report` names the function of the bench that describes what comes back.
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
    """Whether a call has ended its group or replaced a part of torch: the judge says so then."""
    made = dist.is_initialized() and group in dist.distributed_c10d._world.pg_map
    return not made or bool(untouched.replaced(vars(sys.modules["__main__"])))


def alive(reports: Sequence[dict], outs: Sequence) -> list[dict]:
    """The reports, each with whether what came back is no longer what it was when it came."""
    for report, out in zip(reports, outs, strict=True):
        then = report["entries"] if "entries" in report else [report["out"]]
        pairs = zip(tensors_in(out), then, strict=False)  # no tensors: refused before this is
        report["overwritten"] = any(
            was is not None and not near(now.detach(), was) for now, was in pairs
        )
    return list(reports)


def tensors_in(out: object) -> list[Tensor]:
    return [one for one in (out if isinstance(out, list | tuple) else [out]) if bench.plain(one)]


class Call(NamedTuple):
    """One call of the learner's function on a group, and what it gave on each rank."""

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
    """Try an answer on a group, once with each row of `shapes`; `when` says where each is."""
    given = (shapes, seed, dtype, report)
    reports = judge.trial(answer, twice, *given, members=members, when=when[0])
    found = []
    for k, row in enumerate(shapes):
        inputs = [numbers(shape, seed + k, rank, dtype) for rank, shape in enumerate(row)]
        found.append(Call(inputs, [each[k] for each in reports], when[k] + CALLS[k], dtype, k))
    return found


def refuse_overwritten(reports: Sequence[dict], what: str, when: str) -> None:
    """Refuse an answer where `what` an earlier call gave has changed in a later one."""
    SAYS.refuse_each(reports, {"one buffer": lambda r: r["overwritten"]}, what=what, when=when)


def refuse_second(later: bool, when: str) -> None:
    """Refuse what is wrong in a later call: the first, with other numbers, was right."""
    SAYS.refuse({"another second call": later}, when=when)


def refuse_ready_made(reports: Sequence[dict], right: str) -> None:
    """Refuse a collective of torch that does the work; `right` says what is right so far."""
    for rank, report in enumerate(reports):
        calls = " and ".join(sorted(set(report["ops"]) - POINT_TO_POINT))
        SAYS.refuse({"ready-made collective": calls}, right=right, rank=rank, calls=calls)


@contextlib.contextmanager
def told(says: Words, entry: str, so: Callable[[Finding], bool], **about: object) -> Iterator[None]:
    """Tell by `entry` what stops an answer in here, where `so` is true of that."""
    try:
        yield
    except Finding as finding:
        if not so(finding):
            raise
        raise says(entry, details=finding.text.split("\n", 1)[-1], **about) from None


def broke_off(finding: Finding) -> bool:
    return finding.name in ("raised", "deadlock")


def of_two_lengths(finding: Finding) -> bool:
    """Whether two ranks disagree about a message."""
    return finding.name == "raised" and "the ranks disagree" in finding.text


def of_two_dtypes(finding: Finding) -> bool:
    """Whether two ranks disagree about a message, of which one end has another dtype."""
    kinds = set(re.findall(r"\) of (\w+)\[", finding.text))
    return "the ranks disagree" in finding.text and len(kinds) > 1


def listed(parts: Sequence) -> str:
    """1, 2 and 3."""
    *first, last = map(str, parts)
    return f"{', '.join(first)} and {last}" if first else last
