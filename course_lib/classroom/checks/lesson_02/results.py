"""What all functions of lesson 02 are held to: a tuple of tensors, each with this rank's shape.

Shapes tell much: two dims swapped, a full tensor where a shard was asked for, another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.judge import Judge, refuse_none
from course_lib.classroom.checks.lesson_01.trial import told
from course_lib.classroom.checks.words import Page, Words
from course_lib.layout import cut
from course_lib.ledger import forms

SAYS = Page("lesson_02/results")
_STOPPED = ("raised", "deadlock", "not called by all")
_OF_AUTOGRAD = ("does not require grad", "has no backward")


class Owed(NamedTuple):
    """One entry of the tuple: what it is called, this rank's part of it, and the whole."""

    name: str
    part: Tensor
    whole: Tensor


class Call(Protocol):
    """One call on a group: what came back on each rank, and what each should have."""

    reports: list[dict]
    owed: list[list[Owed]]
    when: str
    dtype: str


def seen(call: Call, part: int) -> list[Tensor]:
    return [report["entries"][part] for report in call.reports]


def wrong(call: Call, part: int, alike: Callable = looking.near) -> list[int]:
    """The ranks on which an entry of the tuple is not what it should be."""
    pairs = zip(seen(call, part), call.owed, strict=True)
    return [rank for rank, (one, owed) in enumerate(pairs) if not alike(one, owed[part].part)]


def tried(
    answer: Answer, judge: Judge, members: list[int], when: str, length: int, *trial: object
) -> list:
    """What the ranks reported of a trial: of each call, the reports of all ranks.

    What stops an answer where the `length` that is cut does not divide is told as that.
    """
    pieces = cut(length, len(members))
    empty = [rank for rank, piece in enumerate(pieces) if not piece]
    with (
        told(SAYS, "autograd", lambda finding: any(one in finding.text for one in _OF_AUTOGRAD)),
        told(SAYS, "uneven sizes", lambda f: len(set(pieces)) > 1 and f.name in _STOPPED),
    ):
        reports = judge.trial(answer, *trial, members=members, when=when, empty=empty)
    return [list(of_ranks) for of_ranks in zip(*reports, strict=True)]


def look_at_results(call: Call) -> None:
    """Refuse what is no tuple of this rank's tensors, and a changed input, whatever the values.

    What is looked at further is in float64, whatever it came in.
    """
    reports, when, count = call.reports, call.when, len(call.owed[0])
    asked = f"({', '.join(one.name for one in call.owed[0])})"
    refuse_none(reports, when, asked)
    lost = {"not these tensors": lambda r: not len(r["kinds"]) == len(r["entries"]) == count}
    SAYS.refuse_each(reports, lost, when=when, count=count, asked=asked)
    for rank, (report, owed) in enumerate(zip(reports, call.owed, strict=True)):
        shapes, right = report["shapes"], [list(one.part.shape) for one in owed]
        turned = shapes != right and sorted(shapes) == sorted(right)
        SAYS.refuse({"in another order": turned}, rank=rank, when=when, asked=asked)
        for one, shape, wanted in zip(owed, shapes, right, strict=True):
            whole = list(one.whole.shape)
            named = {
                "transposed": shape == wanted[::-1] or shape == whole[::-1] != whole,
                "whole on every rank": shape == whole,
                "wrong shape": True,
            }
            if shape != wanted:
                about = {"name": one.name, "shape": shape, "wanted": wanted}
                SAYS.refuse(named, rank=rank, when=when, **about)
    looks = {
        "another dtype": lambda r: set(r["dtypes"]) != {call.dtype},
        "input changed": lambda r: r["changed"],
    }
    SAYS.refuse_each(reports, looks, when=when, asked=asked, dtype=call.dtype)
    for report in reports:
        report["entries"] = [entry.double() for entry in report["entries"]]


def refuse_first(
    got: Tensor, says: Words, ideas: Iterable[tuple[str, Tensor]], head: str, **about: object
) -> None:
    """Refuse by the first idea, by its entry in `says`, that gives what a rank got."""
    for entry, value in ideas:
        (idea,) = looking.ideas(says, {entry: [value]}, **about)
        if looking.explains(idea, [got]):
            raise Finding(idea.name, f"{head} {idea.text}")


def fair(call: Call, shape: Sequence[int]) -> float:
    """The bytes of one all-reduce, taken whole or as its two halves, cut along whatever dim."""
    n, numbers, item = len(call.reports), math.prod(shape), getattr(torch, call.dtype).itemsize
    halves = [numbers + (n - 2) * -(-length // n) * numbers / length for length in shape]
    return item * max(forms.all_reduce(n, numbers), *halves)
