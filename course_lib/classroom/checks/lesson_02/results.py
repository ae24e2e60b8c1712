"""What all functions of lesson 02 are held to: a tuple of tensors, each with this rank's shape.

Shapes tell much: two dims swapped, a full tensor where a shard was asked for, a tuple in
another order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_01.trial import listed
from course_lib.classroom.checks.words import Words
from course_lib.layout import cut
from course_lib.ledger import forms

ITEM = 8  # bytes of a float64
_STOPPED = ("raised", "deadlock", "not called by all")


class Owed(NamedTuple):
    """One entry of the tuple: what it is called, this rank's part of it, and the whole."""

    name: str
    part: Tensor
    whole: Tensor


def fair(n: int, shape: Sequence[int], item: int = ITEM) -> float:
    """The bytes of one all-reduce, taken whole or as its two halves, cut along whatever dim."""
    numbers = math.prod(shape)
    halves = [numbers + (n - 2) * -(-length // n) * numbers / length for length in shape]
    return item * max(forms.all_reduce(n, numbers), *halves)


def where(members: list[int], what: str) -> str:
    """Where a trial runs, and with which sizes."""
    return f"{on(members)}, {what}"


def look_at_results(
    reports: list[dict], owed: list[list[Owed]], when: str, dtype: str = "float64"
) -> None:
    """Refuse what is no tuple of this rank's tensors, and a changed input, whatever the values.

    What is looked at further is in float64, whatever it came in.
    """
    names = [one.name for one in owed[0]]
    asked = f"({', '.join(names)})"
    refuse_none(reports, when, asked)
    for rank, report in enumerate(reports):
        kinds = report["kinds"]
        if len(kinds) != len(names) or len(report["entries"]) != len(names):
            got = f"a {report['kind']}" + (f" that holds {', '.join(kinds[:6])}" if kinds else "")
            raise Finding(
                "not these tensors",
                f"Rank {rank} got {got} back {when}; asked for are {len(names)} tensors, {asked}.",
            )
    for rank, (report, entries) in enumerate(zip(reports, owed, strict=True)):
        _look_at_shapes(rank, report, entries, when, asked)
        odd = [one.name for one, k in zip(entries, report["dtypes"], strict=True) if k != dtype]
        if odd:
            raise Finding(
                "another dtype",
                f"Rank {rank} got {listed(odd)} back as {listed(sorted(set(report['dtypes'])))} "
                f"{when}; here all is {dtype}, and so is what should go out.",
            )
    for rank, report in enumerate(reports):
        if report["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed {listed(report['changed'])} on rank {rank}, {when}. The "
                "caller still needs it as it was: make new tensors, or work on a clone.",
            )
        report["entries"] = [entry.double() for entry in report["entries"]]


def _look_at_shapes(rank: int, report: dict, owed: list[Owed], when: str, asked: str) -> None:
    shapes = report["shapes"]
    right = [list(one.part.shape) for one in owed]
    if shapes != right and sorted(shapes) == sorted(right):
        raise Finding(
            "in another order",
            f"Rank {rank} got the right shapes back {when}, in another order than {asked}.",
        )
    for one, shape, wanted in zip(owed, shapes, right, strict=True):
        if shape == wanted:
            continue
        whole = list(one.whole.shape)
        head = f"{one.name} on rank {rank} has shape {shape} {when}; it should be {wanted}"
        if shape == wanted[::-1] or (shape == whole[::-1] and whole != whole[::-1]):
            raise Finding(
                "transposed",
                f"{head}: its two dims are swapped. Which of the two factors comes first, and "
                "which of them is transposed?",
            )
        if shape == whole:
            raise Finding(
                "whole on every rank",
                f"{head}. That is the full {one.name}: a rank returns its own shard alone, and "
                "holds no more than that.",
            )
        raise Finding(
            "wrong shape",
            f"{head}. Over the ranks it is cut as course_lib.layout.cut says, of the dim that the "
            "cut goes through; other dims are whole.",
        )


def refuse_first(
    got: Tensor, says: Words, ideas: Iterable[tuple[str, Tensor]], head: str, **about: object
) -> None:
    """A Finding of the first idea, by its entry in `says`, that gives what a rank got."""
    for entry, value in ideas:
        name, text = says.of(entry, **{"head": head, **about})
        if looking.explains(looking.Idea(name, text, [value]), [got]):
            raise Finding(name, f"{head} {text}")


def refuse_overwritten(reports: list[dict], owed: list[list[Owed]], when: str) -> None:
    """A Finding where a result has changed when the function was called again."""
    for rank, report in enumerate(reports):
        if report["overwritten"]:
            names = listed([owed[rank][k].name for k in report["overwritten"]])
            raise Finding(
                "one buffer",
                f"What rank {rank} got back as {names} {when} has changed in a later call. The "
                "caller may still need it: make new tensors in every call.",
            )


def tried(
    answer: Answer, judge: Judge, members: list[int], when: str, length: int, *trial: object
) -> list:
    """What the ranks reported of a trial: of each call, the reports of all ranks.

    What stops an answer where the `length` that is cut does not divide is told as that.
    """
    n = len(members)
    empty = [rank for rank, piece in enumerate(cut(length, n)) if not piece]
    try:
        reports = judge.trial(answer, *trial, members=members, when=when, empty=empty)
        return [list(of_ranks) for of_ranks in zip(*reports, strict=True)]
    except Finding as finding:
        if "does not require grad" in finding.text or "has no backward" in finding.text:
            raise Finding(
                "autograd",
                "Autograd is switched off while your function runs: it would not see what goes "
                "from rank to rank. Write the products yourself.",
            ) from None
        if length % n == 0 or finding.name not in _STOPPED:
            raise
        details = finding.text.split("\n", 1)[-1]
        raise Finding(
            "uneven sizes",
            "Sizes that divide by the number of ranks come out right; where they do not, parts "
            f"differ in length from rank to rank, and it fails.\n{details}",
        ) from None
