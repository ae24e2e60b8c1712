"""`cut_gradients` of lesson 02: dX, dW and db for both cuts, and nothing sent that no sum needs.

An answer is tried on sizes that divide, then on others, on three ranks and two, and held against
the whole product's gradients and against the bytes of one all-reduce, or none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, refuse_world_numbers
from course_lib.classroom.checks.lesson_01.trial import CALLS, refuse_second
from course_lib.classroom.checks.lesson_02.results import (
    Owed,
    fair,
    look_at_results,
    refuse_first,
    refuse_overwritten,
    tried,
    where,
)
from course_lib.classroom.checks.lesson_02.trial import COLUMNS, ROWS, Product, gradients, product
from course_lib.classroom.checks.looking import (
    THREE,
    TWO,
    all_near,
    fresh_seed,
    near,
    refuse_general,
)
from course_lib.classroom.checks.words import Page

NAMES = ("dX", "dW", "db")
SAYS = Page("lesson_02/cut_gradients")


class Trial(NamedTuple):
    """One call on a group: the whole product, how it was cut, and what came back on each rank."""

    way: str
    whole: Product
    reports: list[dict]
    owed: list[list[Owed]]  # of each rank
    when: str
    dtype: str
    second: bool  # whether a call with the same sizes came before it

    @property
    def n(self) -> int:
        return len(self.reports)


def judge_gradients(answer: Answer, judge: Judge) -> None:
    """Try cut_gradients; raise the Finding that explains best what is wrong."""
    judge.take(answer, "course_lib.classroom.checks.lesson_02.trial")
    seed = fresh_seed()
    b = 5 + 6 * (seed % 2)  # no size is another, or a number of ranks
    even = _try(answer, judge, COLUMNS, THREE, (b, 7, 12), seed)
    even += _try(answer, judge, ROWS, THREE, (b, 12, 7), seed)
    _look_at_values(answer, even)
    uneven = []
    for way, members, sizes, dtype in (
        (COLUMNS, THREE, (b, 7, 4), "float64"),  # four over three ranks: the last has nothing
        (COLUMNS, TWO, (b, 8, 13), "float32"),
        (ROWS, THREE, (b, 4, 7), "float64"),
        (ROWS, TWO, (b, 13, 8), "float32"),
    ):
        uneven += _try(answer, judge, way, members, sizes, seed, dtype)
    _look_at_values(answer, uneven)
    for trial in even + uneven:
        _look_at_bytes(trial)
        refuse_overwritten(trial.reports, trial.owed, trial.when)


def _try(
    answer: Answer,
    judge: Judge,
    way: str,
    members: list[int],
    sizes: tuple[int, int, int],
    seed: int,
    dtype: str = "float64",
) -> list[Trial]:
    when = where(members, "X[{}, {}] W[{}, {}] cut by {}".format(*sizes[:2], *sizes[1:], way))
    given, made, n = (way, sizes, seed, dtype), [], len(members)
    length = sizes[2 if way == COLUMNS else 1]
    for k, reports in enumerate(tried(answer, judge, members, when, length, gradients, *given)):
        whole = product(*sizes, seed + k, dtype).double()
        owed = [_owed(whole.mine(way, n, rank), whole) for rank in range(n)]
        if way == COLUMNS:  # what a rank computes of dX is a partial sum; the sum is asked for
            for entries in owed:
                entries[0] = Owed("dX", entries[0].whole, entries[0].whole)
        look_at_results(reports, owed, when + CALLS[k], dtype)
        made.append(Trial(way, whole, reports, owed, when + CALLS[k], dtype, k > 0))
    return made


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
    _refuse_value(*wrong[0])


def _first_wrong(trial: Trial, part: int) -> int | None:
    """The first rank whose dX, dW or db is not what it should be."""
    for rank, report in enumerate(trial.reports):
        if not near(report["entries"][part], trial.owed[rank][part].part):
            return rank
    return None


def _refuse_value(trial: Trial, part: int) -> None:
    """Raise what is wrong with one of the three gradients."""
    rank, name, n, b = _first_wrong(trial, part), NAMES[part], trial.n, len(trial.whole.x)
    seen = [report["entries"][part] for report in trial.reports]
    owed = [entries[part].part for entries in trial.owed]
    right, head = owed[rank], f"{name} on rank {rank} is not right {trial.when}."
    refuse_second(trial.second, trial.when)
    ideas = []
    if trial.way == COLUMNS and part == 0:
        local = [_by_hand(trial.whole.mine(COLUMNS, n, r))[0] for r in range(n)]
        if all_near(seen, local):
            raise SAYS("sum left out", head=head)
        ideas.append(("mean", right / n))
    elif all(near(one, owed[0]) for one in owed):
        ideas.append(("counted on every rank", n * right))
    elif all(one.shape == right.shape for one in owed):
        mixed = torch.stack(owed).sum(0)
        ideas += [("parts of different things added", mixed / k) for k in (1, n)]
    ideas += [("mean over the rows", right / b), ("sign", -right)]
    refuse_first(seen[rank], SAYS, ideas, head, n=n, b=b, name=name)
    refuse_general(seen, owed, trial.when, sizes={"rows of X": b}, what=name)
    raise SAYS("wrong values", head=head)


def _look_at_bytes(trial: Trial) -> None:
    """Hold what was sent against one all-reduce of dX, or against nothing."""
    item = getattr(torch, trial.dtype).itemsize
    allowed = fair(trial.n, trial.whole.x.shape, item) if trial.way == COLUMNS else 0
    for rank, report in enumerate(trial.reports):
        if report["bytes"] <= allowed:
            continue
        ops = " and ".join(f"{count} × {op}" for op, count in report["ops"].items())
        entry = "over budget"
        if trial.way == ROWS:
            entry = "sent for nothing"
        elif set(report["ops"]) == {"all_gather"}:
            entry = "gathered"
        about = {"rank": rank, "bytes": report["bytes"], "allowed": allowed, "ops": ops}
        raise SAYS(entry, head=SAYS.of("head", **about, when=trial.when)[1])


GRADIENTS = Exercise(judge=judge_gradients, **SAYS.about)
