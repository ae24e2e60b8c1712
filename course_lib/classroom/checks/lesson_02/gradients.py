"""`cut_gradients` of lesson 02: dX, dW and db for both cuts, and nothing sent that no sum needs.

An answer is tried on sizes that divide, then on others, on three ranks and two, and held against
the whole product's gradients and against the bytes of one all-reduce, or none.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, refuse_world_numbers
from course_lib.classroom.checks.lesson_02.results import (
    Owed,
    close,
    fair,
    look_at_results,
    tried,
    where,
)
from course_lib.classroom.checks.lesson_02.trial import COLUMNS, ROWS, Product, product

NAMES = ("dX", "dW", "db")


class Trial(NamedTuple):
    """One call on a group: the whole product, how it was cut, and what came back on each rank."""

    way: str
    whole: Product
    reports: list[dict]
    owed: list[list[Owed]]  # of each rank
    when: str

    @property
    def n(self) -> int:
        return len(self.reports)


def judge_gradients(answer: Answer, judge: Judge) -> None:
    """Try cut_gradients; raise the Finding that explains best what is wrong."""
    judge.take(answer)
    seed = int.from_bytes(os.urandom(3), "big")
    b, p = 3 + seed % 3, 2 + seed % 2
    three, two = [0, 1, 2], [1, 2]  # the two are not the notebook's first two
    even = [
        _try(answer, judge, way, three, (b, 3 * p, 3 * p + 9), seed, True)
        for way in (COLUMNS, ROWS)
    ]
    _look_at_values(answer, even)
    uneven = [
        _try(answer, judge, way, members, sizes, seed, False)
        for way, members, sizes in (
            (COLUMNS, three, (b, 3 * p + 1, 3 * p + 7)),
            (COLUMNS, two, (b, 2 * p + 1, 2 * p + 7)),
            (ROWS, three, (b, 4, 7)),  # four over three ranks: the last has nothing
            (ROWS, two, (b, 2 * p + 1, 2 * p + 7)),
        )
    ]
    _look_at_values(answer, uneven)
    for trial in even + uneven:
        _look_at_bytes(trial)


def _try(
    answer: Answer,
    judge: Judge,
    way: str,
    members: list[int],
    sizes: tuple[int, int, int],
    seed: int,
    even: bool,
) -> Trial:
    when = where(members, "X[{}, {}] W[{}, {}] cut by {}".format(*sizes[:2], *sizes[1:], way))
    call = (
        f'bench.part("lesson_02.trial").gradients({answer.name}, "{way}", {sizes}, {seed}, '
        "__trial__)"
    )
    reports = tried(answer, judge, call, members, when, even)
    whole = product(*sizes, seed)
    owed = [_owed(whole.mine(way, len(members), rank), whole) for rank in range(len(members))]
    if way == COLUMNS:  # what a rank computes of dX is a partial sum; the sum is asked for
        for entries in owed:
            entries[0] = Owed("dX", entries[0].whole, entries[0].whole)
    look_at_results(reports, owed, when)
    return Trial(way, whole, reports, owed, when)


def _owed(mine: Product, whole: Product) -> list[Owed]:
    parts, wholes = _by_hand(mine), _by_hand(whole)
    return [Owed(*three) for three in zip(NAMES, parts, wholes, strict=True)]


def _by_hand(p: Product) -> tuple[Tensor, Tensor, Tensor]:
    return p.dy @ p.weight.T, p.x.T @ p.dy, p.dy.sum(0)


def _look_at_values(answer: Answer, trials: list[Trial]) -> None:
    wrong = [(t, part) for t in trials for part in range(3) if _first_wrong(t, part) is not None]
    if not wrong:
        return
    if all(trial.n == 2 for trial, _ in wrong):
        refuse_world_numbers(answer, wrong[0][0].when)
    trial, part = wrong[0]
    raise _wrong_value(trial, part)


def _first_wrong(trial: Trial, part: int) -> int | None:
    """The first rank whose dX, dW or db is not what it should be."""
    for rank, report in enumerate(trial.reports):
        if not close(report["entries"][part], trial.owed[rank][part].part):
            return rank
    return None


def _wrong_value(trial: Trial, part: int) -> Finding:
    rank = _first_wrong(trial, part)
    name, n, b = NAMES[part], trial.n, len(trial.whole.x)
    got, right = trial.reports[rank]["entries"][part], trial.owed[rank][part].part
    head = f"{name} on rank {rank} is not right {trial.when}."
    if trial.way == COLUMNS and part == 0:
        local = [_by_hand(trial.whole.mine(COLUMNS, n, r))[0] for r in range(n)]
        if close(got, local[rank]):
            return Finding(
                "sum left out",
                f"{head} It is this rank's own part of a sum. Every rank has multiplied with the "
                "same X, so X has a gradient from each of them, and they add up.",
            )
        if close(got, right / n):
            return Finding(
                "mean",
                f"{head} It is the sum divided by {n}. The ranks' parts are parts of one sum, not "
                "estimates of the same gradient.",
            )
    parts = [trial.owed[r][part].part for r in range(n)]
    if part != 0 or trial.way == ROWS:
        alike = all(one.shape == got.shape for one in parts)
        same = alike and all(close(one, parts[0]) for one in parts)
        if same and close(got, n * right):
            return Finding(
                "counted on every rank",
                f"{head} It is {n} times what it should be: every rank has computed the whole "
                f"{name} already, and the ranks' copies were added up.",
            )
        if (
            alike
            and not same
            and (close(got, torch.stack(parts).sum(0)) or close(got, torch.stack(parts).mean(0)))
        ):
            return Finding(
                "parts of different things added",
                f"{head} It is a mixture of all ranks' {name}, and theirs belong to other parts of "
                "the whole. Which dim does its product run over, and is that dim cut?",
            )
    if close(got, right / b):
        return Finding(
            "mean over the rows",
            f"{head} It is divided by the {b} rows of X. The gradient sums over them; a mean, "
            "where one is wanted, is in dY already.",
        )
    if close(got, -right):
        return Finding("sign", f"{head} It has the opposite sign.")
    return Finding(
        "wrong values",
        f"{head} Write the product with its dims, such as dY[b, f] and W[h, f]: the dim that the "
        "result has not is the one that is summed over.",
    )


def _look_at_bytes(trial: Trial) -> None:
    """Hold what was sent against one all-reduce of dX, or against nothing."""
    n, (b, h) = trial.n, trial.whole.x.shape
    allowed = fair(n, (b, h)) if trial.way == COLUMNS else 0
    for rank, report in enumerate(trial.reports):
        if report["bytes"] <= allowed:
            continue
        ops = " and ".join(f"{count} × {op}" for op, count in report["ops"].items())
        head = (
            f"The gradients are right, but rank {rank} has to send {report['bytes']} bytes "
            f"{trial.when} ({ops}); allowed are {allowed:g}."
        )
        if trial.way == ROWS:
            raise Finding(
                "sent for nothing",
                f"{head} By rows every rank holds all that its own gradients need.",
            )
        if set(report["ops"]) == {"all_gather"}:
            raise Finding(
                "gathered",
                f"{head} Whole tensors came to every rank, and each worked on all of them. A rank "
                "needs no other's part of W or dY, and only the sum of their parts of dX.",
            )
        raise Finding("over budget", f"{head} One all-reduce is needed: of what?")


GRADIENTS = Exercise(
    name="cut_gradients",
    title="The gradients of both cuts, by hand",
    points=4,
    judge=judge_gradients,
    when_right=(
        "dX, dW and db as one process has them, for both cuts, on two ranks and on three, for "
        "sizes that divide and sizes that do not. By columns one sum went over the wire, by rows "
        "nothing."
    ),
    hints=(
        "First without ranks: Y[b, f] = X[b, h] W[h, f] + bias[f]. Each of dX, dW and db is made "
        "of dY and at most one other tensor. Which dim has to go, in each?",
        "Now the cut. Of the three results, which is a sum over a dim that is sharded over the "
        "ranks? Only that one needs the others; the rest a rank computes from what it holds.",
        "By columns f is cut. Where is f summed over? By rows h is cut. Where is h summed over in "
        "the backward?",
        "One all-reduce, by columns alone. course_lib.collectives.all_reduce(part, group) gives "
        "the sum as a new tensor.",
    ),
)
