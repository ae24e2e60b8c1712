"""`cut_gradients` of lesson 02: dX, dW and db for both cuts, without unnecessary messages.

The answer is tried on divisible sizes, then on others. It may use one all-reduce, or none.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import THREE, TWO, all_alike, fresh_seed, refuse_general
from course_classroom.judge.words import Page
from course_lessons.lesson_00.trial import CALLS, refuse_overwritten, refuse_second
from course_lessons.lesson_02 import trial
from course_lessons.lesson_02.trial import COLUMNS, ROWS, Owed, Product, product

SAYS = Page(__file__, "cut_gradients")


class Call:
    """One call on a group: the full product, its cut, and the results of each rank."""

    def __init__(
        self, way: str, whole: Product, reports: list, when: str, dtype: str, second: bool
    ):
        self.way, self.whole, self.reports, self.n = way, whole, reports, len(reports)
        self.when, self.dtype, self.second = when, dtype, second
        self.parts = [by_hand(whole.mine(way, self.n, rank)) for rank in range(self.n)]
        wholes = by_hand(whole)
        # By columns a rank computes a partial sum of dX, but the check expects the sum.
        asked = [wholes[:1] + part[1:] if way == COLUMNS else part for part in self.parts]
        self.owed = [list(map(Owed, ("dX", "dW", "db"), part, wholes)) for part in asked]


def by_hand(p: Product) -> tuple[Tensor, Tensor, Tensor]:
    return p.dy @ p.weight.T, p.x.T @ p.dy, p.dy.sum(0)


def judge_gradients(answer: Answer, judge: Judge) -> None:
    """Try cut_gradients; raise the Finding that explains the error best."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    b = 5 + 6 * (seed % 2)  # differs from all other sizes and from the number of ranks

    def tried(way: str, members: list[int], h: int, f: int, dtype: str = "float64") -> list[Call]:
        when, sizes = f"{on(members)}, X[{b}, {h}] W[{h}, {f}] cut by {way}", (b, h, f)

        def call(k: int, reports: list[dict]) -> Call:
            whole = product(*sizes, seed + k, dtype).double()
            return Call(way, whole, reports, when + CALLS[k], dtype, k > 0)

        where, given = (members, when, f if way == COLUMNS else h), (way, sizes, seed, dtype)
        return trial.tried(answer, judge, where, call, trial.gradients, *given)

    even = tried(COLUMNS, THREE, 7, 12) + tried(ROWS, THREE, 12, 7)
    _look_at_values(even)
    uneven = tried(COLUMNS, THREE, 7, 4)  # four over three ranks: the last one has nothing
    uneven += tried(COLUMNS, TWO, 8, 13, "float32")
    uneven += tried(ROWS, THREE, 4, 7) + tried(ROWS, TWO, 13, 8, "float32")
    _look_at_values(uneven)
    for call in even + uneven:
        _look_at_bytes(call)
        refuse_overwritten(call.reports, "A gradient", call.when)


def _look_at_values(calls: list[Call]) -> None:
    """Raise a Finding for the first wrong gradient among dX, dW and db."""
    for call, part in itertools.product(calls, range(3)):
        if trial.wrong(call, part):
            refuse_second(call.second, call.when)
            _refuse_value(call, part)


def _refuse_value(call: Call, part: int) -> None:
    rank, n, b = trial.wrong(call, part)[0], call.n, len(call.whole.x)
    owed, seen = [entries[part] for entries in call.owed], trial.seen(call, part)
    name, wanted, right = owed[0].name, [one.part for one in owed], owed[rank].part
    head = f"{name} on rank {rank} is wrong ({call.when})."
    ideas = []
    if call.way == COLUMNS and part == 0:
        local = [part[0] for part in call.parts]
        SAYS.refuse({"sum left out": all_alike(seen, local)}, head=head)
        ideas.append(("mean", right / n))
    elif all_alike(wanted, [right] * n):
        ideas.append(("counted on every rank", n * right))
    elif all(one.shape == right.shape for one in wanted):
        mixed = torch.stack(wanted).sum(0)
        ideas += [("different shards added", mixed / k) for k in (1, n)]
    ideas += [("mean over the rows", right / b), ("sign", -right)]
    trial.refuse_first(seen[rank], SAYS, ideas, head, n=n, b=b, name=name)
    refuse_general(seen, wanted, call.when, sizes={"rows of X": b}, what=f"gradient {name}")
    raise SAYS("wrong values", head=head)


def _look_at_bytes(call: Call) -> None:
    """Compare the bytes sent with one all-reduce of dX for a cut by columns, or with zero."""
    allowed = trial.fair(call, call.whole.x.shape) if call.way == COLUMNS else 0
    looks = {
        "sent for nothing": lambda r: r["bytes"] and call.way == ROWS,
        "gathered": lambda r: r["bytes"] > allowed and set(r["ops"]) == {"all_gather"},
        "over budget": lambda r: r["bytes"] > allowed,
    }
    SAYS.refuse_each(call.reports, looks, when=call.when, allowed=allowed)


GRADIENTS = Exercise(judge=judge_gradients, **SAYS.about)
