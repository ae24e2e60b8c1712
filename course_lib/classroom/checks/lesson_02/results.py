"""What all functions of lesson 02 are held to: a tuple of tensors, each with this rank's shape.

Shapes tell much: two dims swapped, a full tensor where a shard was asked for, a tuple in
another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.ledger import forms

TOLERANCE = 1e-10  # float64
ITEM = 8  # bytes of a float64
_STOPPED = ("raised", "deadlock")


class Owed(NamedTuple):
    """One entry of the tuple: what it is called, this rank's part of it, and the whole."""

    name: str
    part: Tensor
    whole: Tensor


def close(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding in float64; NaNs are close to nothing."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def fair(n: int, shape: Sequence[int]) -> float:
    """The bytes of one all-reduce, taken whole or as its two halves, cut along whatever dim."""
    numbers = math.prod(shape)
    halves = [numbers + (n - 2) * -(-length // n) * numbers / length for length in shape]
    return ITEM * max(forms.all_reduce(n, numbers), *halves)


def listed(parts: Sequence[object]) -> str:
    """1, 2 and 3."""
    *first, last = map(str, parts)
    return f"{', '.join(first)} and {last}" if first else last


def where(members: list[int], what: str) -> str:
    """Where a trial runs, and with which sizes."""
    return f"{on(members)}, {what}"


def look_at_results(reports: list[dict], owed: list[list[Owed]], when: str) -> None:
    """Refuse what is no tuple of this rank's tensors, and a changed input, whatever the values."""
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
    for rank, report in enumerate(reports):
        if report["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed {listed(report['changed'])} on rank {rank}, {when}. The "
                "caller still needs it as it was: make new tensors, or work on a clone.",
            )


def _look_at_shapes(rank: int, report: dict, owed: list[Owed], when: str, asked: str) -> None:
    shapes = report["shapes"]
    right = [list(one.part.shape) for one in owed]
    if shapes == right:
        odd = [
            one.name for one, kind in zip(owed, report["dtypes"], strict=True) if kind != "float64"
        ]
        if odd:
            raise Finding(
                "another dtype",
                f"Rank {rank} got {listed(odd)} back as {listed(sorted(set(report['dtypes'])))} "
                f"{when}; what comes in is float64, and so is what should go out.",
            )
        return
    if sorted(shapes) == sorted(right):
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


def tried(
    answer: Answer, judge: Judge, call: str, members: list[int], when: str, even: bool
) -> list:
    """What the ranks reported; what stops an answer on uneven sizes alone is told as that."""
    try:
        return judge.trial(answer, call, members, when)
    except Finding as finding:
        if "does not require grad" in finding.text or "has no backward" in finding.text:
            raise Finding(
                "autograd",
                "Autograd is switched off while your function runs: it would not see what goes "
                "from rank to rank. Write the products yourself.",
            ) from None
        if even or finding.name not in _STOPPED:
            raise
        details = finding.text.split("\n", 1)[-1]
        raise Finding(
            "uneven sizes",
            "Sizes that divide by the number of ranks come out right; where they do not, parts "
            f"differ in length from rank to rank, and it fails.\n{details}",
        ) from None
