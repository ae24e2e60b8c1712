"""`sharded_init` of lesson 02: parts of a layer whose values do not depend on how many hold them.

The whole is what torch.nn.Linear would have drawn; nothing is sent, nothing more kept.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup as Group

from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import THREE, TWO, fresh_seed
from course_classroom.judge.words import Page
from course_lessons.lesson_00 import trial as first
from course_lessons.lesson_02 import trial
from course_lessons.lesson_02.trial import COLUMNS, ROWS, Owed, called, twice
from course_lib.layout import span
from course_lib.memory.lifetimes import StorageWatch

SAYS = Page(__file__, "sharded_init")


class Call:
    """One call on a group, the dense layer that it should be a part of, and what came back."""

    dtype = "float32"

    def __init__(self, way: str, h: int, f: int, seed: int, reports: list, when: str, second: bool):
        self.way, self.h, self.f, self.seed = way, h, f, seed
        self.reports, self.when, self.second, self.n = reports, when, second, len(reports)
        weight, bias, self.following = dense(h, f, seed)
        self.owed = [parts(weight, bias, way, self.n, rank) for rank in range(self.n)]


def judge_init(answer: Answer, judge: Judge) -> None:
    """Try sharded_init; raise the Finding that explains best what is wrong."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    p = 7 + 3 * (seed % 2)  # no size is another, or a number of ranks

    def tried(way: str, members: list[int], h: int, f: int) -> list[Call]:
        when = f"{on(members)}, W[{h}, {f}] cut by {way}"

        def call(k: int, reports: list[dict]) -> Call:
            return Call(way, h, f, seed + k, reports, when + first.CALLS[k], k > 0)

        where = (members, when, f if way == COLUMNS else h)
        return trial.tried(answer, judge, where, call, initial, h, f, way, seed)

    even = tried(COLUMNS, THREE, p, 12) + tried(ROWS, THREE, 12, p)
    _look_at_values(even)
    uneven = tried(COLUMNS, THREE, p, 4)  # four over three ranks: the last has nothing
    uneven += tried(ROWS, THREE, 4, p) + tried(ROWS, TWO, 2 * p + 1, p + 2)
    _look_at_values(uneven)
    for call in even + uneven:
        SAYS.refuse_each(call.reports, {"sent": lambda r: r["ops"]}, when=call.when)
    for call in even + uneven:
        _look_at_what_is_left(call)
        first.refuse_overwritten(call.reports, "A part", call.when)


def initial(function: Callable, group: Group, h: int, f: int, way: str, seed: int) -> list[dict]:
    """Call `function(h, f, way, group)` twice, each time with the generator set alike everywhere.

    `next` are the values that the generator gives after it, `kept` the bytes under each part,
    `left` those of full parameters that are in memory still.
    """

    def call(k: int) -> tuple[dict, object]:
        torch.manual_seed(seed + k)
        memory = StorageWatch()

        def draw() -> object:
            with memory:
                return function(h, f, way, group)

        report, out = called(draw, {})
        report["next"] = torch.rand(3, dtype=torch.float64)
        places = [one.untyped_storage() for one in first.tensors_in(out)]
        own = {place._cdata for place in places}
        gc.collect()
        others = [one.nbytes() for one in memory.made_and_alive() if one._cdata not in own]
        left = [size for size in others if size == 4 * f or size >= 4 * h * f]
        kept = [place.nbytes() for place in places]
        return {**report, "kept": kept, "left": max(left, default=0)}, out

    return twice(call, group)


def _look_at_values(calls: list[Call]) -> None:
    """Raise what is wrong, the weight's before the bias's, which is drawn after it."""
    wrong = [(part, call) for part in (0, 1) for call in calls if trial.wrong(call, part, same)]
    if not wrong:
        return
    first.refuse_second(all(call.second for _, call in wrong), wrong[0][1].when)
    wrong = [(part, call) for part, call in wrong if not call.second]
    for part, call in wrong:  # one of the two cuts may say more than the other
        if part == wrong[0][0]:
            _refuse_value(call, part)
    raise SAYS("other numbers", head=_head(*wrong[0]))


def _head(part: int, call: Call) -> str:
    rank = trial.wrong(call, part, same)[0]
    return f"The {call.owed[0][part].name} on rank {rank} is not the dense layer's {call.when}."


def _refuse_value(call: Call, part: int) -> None:
    """Raise what the weight (part 0) or the bias on the first rank where it is wrong is instead."""
    rank, n, got = trial.wrong(call, part, same)[0], call.n, trial.seen(call, part)
    right = [owed[part].part for owed in call.owed]
    scaled, alike = ratio(got[rank], right[rank]), all(same(one, got[0]) for one in got)
    of_part = call.way == ROWS and math.isclose(scaled or 0, math.sqrt(n), rel_tol=0.05)
    named = {
        "fan-in of the part": of_part,
        "zeros": scaled == 0,
        "another scale": scaled,
    }
    if part == 1:
        differs = call.way == ROWS and not alike
        named |= {"bias differs by rank": differs, "bias drawn otherwise": True}
    else:
        whole, dim = call.owed[rank][0].whole, 0 if call.way == COLUMNS else 1
        every_nth = whole.index_select(dim, torch.arange(rank, whole.shape[dim], n))
        bound = 1.001 / math.sqrt(max(1, min(right[rank].shape[1], call.h)))
        named |= {
            "rank 0's part everywhere": alike and any(report["ops"] for report in call.reports),
            "same numbers on every rank": alike,
            "a seed for each rank": own_seeds(call, got),
            "another rank's part": any(same(got[rank], one) for one in right),
            "every n-th": same(got[rank], every_nth),
            "rounded on the way": (got[rank] - right[rank]).abs().max() < 1e-2 * whole.abs().max(),
            "another distribution": got[rank].abs().max() > bound,
        }
    SAYS.refuse(named, head=_head(part, call), n=n, scaled=scaled)


def _look_at_what_is_left(call: Call) -> None:
    """Hold the generator and the memory against those of one process that has drawn the layer."""
    looks = {"generator out of step": lambda r: not torch.equal(r["next"], call.following)}
    SAYS.refuse_each(call.reports, looks, when=call.when)
    for rank, (report, owed) in enumerate(zip(call.reports, call.owed, strict=True)):
        cut_off = [one.whole.numel() > one.part.numel() for one in owed]
        more = [kept - one.part.nbytes for kept, one in zip(report["kept"], owed, strict=True)]
        kept = max(report["left"], *itertools.compress(more, cut_off), 0)
        SAYS.refuse({"whole kept alive": kept}, rank=rank, kept=kept, when=call.when)


def dense(h: int, f: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """What one process has: weight, bias, and what the generator gives after them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(h, f)
        following = torch.rand(3, dtype=torch.float64)
    return layer.weight.detach(), layer.bias.detach(), following


def parts(weight: Tensor, bias: Tensor, way: str, n: int, rank: int) -> list[Owed]:
    """What one rank holds, in torch.nn.Linear's shapes: weight[f, h]."""
    f, h = weight.shape
    own = slice(*span(f if way == COLUMNS else h, n, rank))
    mine = (weight[own], bias[own]) if way == COLUMNS else (weight[:, own], bias)
    return list(map(Owed, ("weight", "bias"), mine, (weight, bias)))


def same(a: Tensor, b: Tensor) -> bool:
    """Drawn by the same generator in the same order: equal but for the last bit of a scaling."""
    return a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=1e-6, atol=1e-9)


def own_seeds(call: Call, got: list[Tensor]) -> bool:
    """Whether each rank drew a layer of its part's size, or the whole, from the seed plus r."""
    n = len(got)
    for step, plus in itertools.product((1, 10, 100, 1000), (0, 1)):
        seeds = [call.seed + step * rank + plus for rank in range(n)]
        small = [dense(*one.shape[::-1], seed)[0] for one, seed in zip(got, seeds, strict=True)]
        wholes = [dense(call.h, call.f, seed)[:2] for seed in seeds]
        large = [parts(*whole, call.way, n, rank)[0].part for rank, whole in enumerate(wholes)]
        if any(all(map(same, got, drawn)) for drawn in (small, large)):
            return True
    return False


def ratio(got: Tensor, right: Tensor) -> float | None:
    """How many times `right` a tensor is, where it is that throughout."""
    if got.shape != right.shape or not right.numel():
        return None
    scale = float(got.double().norm() / right.double().norm())
    for signed in (scale, -scale):
        if torch.allclose(got.double(), signed * right.double(), rtol=1e-5, atol=1e-8):
            return signed
    return None


SHARDED_INIT = Exercise(judge=judge_init, **SAYS.about)
