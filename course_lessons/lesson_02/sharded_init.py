"""`sharded_init` of lesson 02: shards of a layer whose values do not depend on the world size.

The full layer must equal torch.nn.Linear's; no data may be sent, and no extra memory kept.
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
    """One call on a group, the dense layer that it must match, and its results."""

    dtype = "float32"

    def __init__(self, way: str, h: int, f: int, seed: int, reports: list, when: str, second: bool):
        self.way, self.h, self.f, self.seed = way, h, f, seed
        self.reports, self.when, self.second, self.n = reports, when, second, len(reports)
        weight, bias, self.following = dense(h, f, seed)
        self.owed = [parts(weight, bias, way, self.n, rank) for rank in range(self.n)]


def judge_init(answer: Answer, judge: Judge) -> None:
    """Try sharded_init; raise the Finding that explains the error best."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    p = 7 + 3 * (seed % 2)  # differs from all other sizes and from the number of ranks

    def tried(way: str, members: list[int], h: int, f: int) -> list[Call]:
        when = f"{on(members)}, W[{h}, {f}] cut by {way}"

        def call(k: int, reports: list[dict]) -> Call:
            return Call(way, h, f, seed + k, reports, when + first.CALLS[k], k > 0)

        where = (members, when, f if way == COLUMNS else h)
        return trial.tried(answer, judge, where, call, initial, h, f, way, seed)

    even = tried(COLUMNS, THREE, p, 12) + tried(ROWS, THREE, 12, p)
    _look_at_values(even)
    uneven = tried(COLUMNS, THREE, p, 4)  # four over three ranks: the last one has nothing
    uneven += tried(ROWS, THREE, 4, p) + tried(ROWS, TWO, 2 * p + 1, p + 2)
    _look_at_values(uneven)
    for call in even + uneven:
        SAYS.refuse_each(call.reports, {"sent": lambda r: r["ops"]}, when=call.when)
    for call in even + uneven:
        _look_at_what_is_left(call)
        first.refuse_overwritten(call.reports, "A part", call.when)


def initial(function: Callable, group: Group, h: int, f: int, way: str, seed: int) -> list[dict]:
    """Call `function(h, f, way, group)` twice, each time with equal generators on all ranks.

    `next` holds the generator's next values, `kept` the bytes of each shard's storage, and `left`
    the bytes of full parameters still in memory.
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
    """Raise a Finding for the first error, in the weight first, because the bias is drawn later."""
    wrong = [(part, call) for part in (0, 1) for call in calls if trial.wrong(call, part, same)]
    if not wrong:
        return
    first.refuse_second(all(call.second for _, call in wrong), wrong[0][1].when)
    wrong = [(part, call) for part, call in wrong if not call.second]
    for part, call in wrong:  # one of the two cuts may tell more than the other
        if part == wrong[0][0]:
            _refuse_value(call, part)
    raise SAYS("other numbers", head=_head(*wrong[0]))


def _head(part: int, call: Call) -> str:
    what = f"{call.owed[0][part].name} on rank {trial.wrong(call, part, same)[0]}"
    return f"The {what} does not match the dense layer ({call.when})."


def _refuse_value(call: Call, part: int) -> None:
    """Raise a Finding for the weight (part 0) or the bias on the first rank where it is wrong."""
    rank, n, got = trial.wrong(call, part, same)[0], call.n, trial.seen(call, part)
    right = [owed[part].part for owed in call.owed]
    scaled, alike = ratio(got[rank], right[rank]), all(same(one, got[0]) for one in got)
    of_part = call.way == ROWS and math.isclose(scaled or 0, math.sqrt(n), rel_tol=0.05)
    named = {"fan-in of the part": of_part, "zeros": scaled == 0, "wrong scale": scaled}
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
            "a different rank's part": any(same(got[rank], one) for one in right),
            "every n-th": same(got[rank], every_nth),
            "rounded on the way": (got[rank] - right[rank]).abs().max() < 1e-2 * whole.abs().max(),
            "wrong distribution": got[rank].abs().max() > bound,
        }
    SAYS.refuse(named, head=_head(part, call), n=n, scaled=scaled)


def _look_at_what_is_left(call: Call) -> None:
    """Compare the generator's state with one process that drew the layer, and the memory kept."""
    looks = {"generator out of step": lambda r: not torch.equal(r["next"], call.following)}
    SAYS.refuse_each(call.reports, looks, when=call.when)
    for rank, (report, owed) in enumerate(zip(call.reports, call.owed, strict=True)):
        cut_off = [one.whole.numel() > one.part.numel() for one in owed]
        more = [kept - one.part.nbytes for kept, one in zip(report["kept"], owed, strict=True)]
        kept = max(report["left"], *itertools.compress(more, cut_off), 0)
        SAYS.refuse({"full layer kept in memory": kept}, rank=rank, kept=kept, when=call.when)


def dense(h: int, f: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of one process: weight, bias, and the generator's next values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(h, f)
        following = torch.rand(3, dtype=torch.float64)
    return layer.weight.detach(), layer.bias.detach(), following


def parts(weight: Tensor, bias: Tensor, way: str, n: int, rank: int) -> list[Owed]:
    """Return one rank's shards of the weight and bias, in torch.nn.Linear's shape weight[f, h]."""
    f, h = weight.shape
    own = slice(*span(f if way == COLUMNS else h, n, rank))
    mine = (weight[own], bias[own]) if way == COLUMNS else (weight[:, own], bias)
    return list(map(Owed, ("weight", "bias"), mine, (weight, bias)))


def same(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors are equal up to the rounding of a scaling."""
    return a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=1e-6, atol=1e-9)


def own_seeds(call: Call, got: list[Tensor]) -> bool:
    """Return True if each rank drew a full or a shard-sized layer from a rank-dependent seed."""
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
    """Return the factor between a tensor and `right`, if it is constant."""
    if got.shape != right.shape or not right.numel():
        return None
    scale = float(got.double().norm() / right.double().norm())
    for signed in (scale, -scale):
        if torch.allclose(got.double(), signed * right.double(), rtol=1e-5, atol=1e-8):
            return signed
    return None


SHARDED_INIT = Exercise(judge=judge_init, **SAYS.about)
