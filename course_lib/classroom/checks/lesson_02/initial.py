"""`sharded_init` of lesson 02: parts of a layer whose values do not depend on how many hold them.

The whole is what torch.nn.Linear would have drawn. An answer is held against its parts, against the
generator's state afterwards, against what it keeps in memory and against sending nothing.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup as Group

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, refuse_world_numbers
from course_lib.classroom.checks.lesson_01.trial import CALLS, refuse_second, spoilt
from course_lib.classroom.checks.lesson_02.results import (
    Owed,
    look_at_results,
    refuse_overwritten,
    tried,
    where,
)
from course_lib.classroom.checks.lesson_02.trial import COLUMNS, ROWS, Called, alive, called
from course_lib.classroom.checks.looking import THREE, TWO, counted, fresh_seed
from course_lib.classroom.checks.words import Page
from course_lib.layout import span
from course_lib.memory.watch import Watch

SAYS = Page("lesson_02/sharded_init")


class Trial(NamedTuple):
    """One call on a group, the dense layer that it should be a part of, and what came back."""

    way: str
    h: int
    f: int
    reports: list[dict]
    owed: list[list[Owed]]
    following: Tensor  # the generator's next numbers after the dense layer
    seed: int
    when: str
    second: bool  # whether a call with the same sizes came before it

    def wrong_ranks(self, part: int) -> list[int]:
        got = [report["entries"][part] for report in self.reports]
        return [r for r, owed in enumerate(self.owed) if not same(got[r], owed[part].part)]


def judge_init(answer: Answer, judge: Judge) -> None:
    """Try sharded_init; raise the Finding that explains best what is wrong."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    p = 7 + 3 * (seed % 2)  # no size is another, or a number of ranks
    even = _try(answer, judge, COLUMNS, THREE, p, 12, seed)
    even += _try(answer, judge, ROWS, THREE, 12, p, seed)
    _look_at_values(answer, even)
    uneven = []
    for way, members, h, f in (
        (COLUMNS, THREE, p, 4),  # four over three ranks: the last has nothing
        (ROWS, THREE, 4, p),
        (ROWS, TWO, 2 * p + 1, p + 2),
    ):
        uneven += _try(answer, judge, way, members, h, f, seed)
    _look_at_values(answer, uneven)
    for trial in even + uneven:
        for rank, report in enumerate(trial.reports):
            if report["ops"]:
                raise SAYS("sent", rank=rank, ops=counted(report["ops"]), when=trial.when)
    for trial in even + uneven:
        _look_at_what_is_left(trial)
        refuse_overwritten(trial.reports, trial.owed, trial.when)


def initial(function: Callable, group: Group, h: int, f: int, way: str, seed: int) -> list[dict]:
    """Call `function(h, f, way, group)` twice, each time with the generator set alike everywhere.

    `next` are the values that the generator gives after it, `left` the bytes of full parameters
    that are in memory still.
    """
    calls: list[Called] = []
    while len(calls) < len(CALLS) and not (calls and spoilt(group)):
        torch.manual_seed(seed + len(calls))
        memory = Watch()

        def draw(memory: Watch = memory) -> object:
            with memory:
                return function(h, f, way, group)

        call = called(draw, {})
        call.report["next"] = torch.rand(3, dtype=torch.float64)
        parts = {one.untyped_storage()._cdata for one in call.tensors}
        gc.collect()
        others = [one.nbytes() for one in memory.made_and_alive() if one._cdata not in parts]
        call.report["left"] = [size for size in others if size == 4 * f or size >= 4 * h * f]
        calls.append(call)
    return alive(calls)


def _try(
    answer: Answer, judge: Judge, way: str, members: list[int], h: int, f: int, seed: int
) -> list[Trial]:
    when = where(members, f"W[{h}, {f}] cut by {way}")
    length = f if way == COLUMNS else h
    calls = tried(answer, judge, members, when, length, initial, h, f, way, seed)
    n, made = len(members), []
    for k, reports in enumerate(calls):
        weight, bias, following = dense(h, f, seed + k)
        owed = [parts(weight, bias, way, n, rank) for rank in range(n)]
        at = when + CALLS[k]
        look_at_results(reports, owed, at, "float32")
        made.append(Trial(way, h, f, reports, owed, following, seed + k, at, k > 0))
    return made


def _look_at_values(answer: Answer, trials: list[Trial]) -> None:
    wrong = [(trial, part) for trial in trials for part in (0, 1) if trial.wrong_ranks(part)]
    if not wrong:
        return
    if all(len(trial.reports) == 2 for trial, _ in wrong):
        refuse_world_numbers(answer, wrong[0][0].when)
    refuse_second(all(trial.second for trial, _ in wrong), wrong[0][0].when)
    wrong = [(trial, part) for trial, part in wrong if not trial.second]
    # The bias is drawn after the weight. And one of the two cuts may say more than the other.
    first = min(part for _, part in wrong)
    found = [_explained(trial, first) for trial, part in wrong if part == first]
    raise next((one for one in found if one.name != "other numbers"), found[0])


def _explained(trial: Trial, part: int) -> Finding:
    """What the weight (part 0) or the bias on the first rank where it is wrong is instead."""
    rank, n, name = trial.wrong_ranks(part)[0], len(trial.reports), trial.owed[0][part].name
    got = [report["entries"][part] for report in trial.reports]
    right = [owed[part].part for owed in trial.owed]
    scaled, alike = ratio(got[rank], right[rank]), all(same(one, got[0]) for one in got)
    if scaled is not None:
        by_part = trial.way == ROWS and math.isclose(scaled, math.sqrt(n), rel_tol=0.05)
        named = {"fan-in of the part": by_part, "zeros": scaled == 0, "another scale": True}
    elif part == 1:
        differs = trial.way == ROWS and not alike
        named = {"bias differs by rank": differs, "bias drawn otherwise": True}
    else:
        whole, dim = trial.owed[rank][0].whole, 0 if trial.way == COLUMNS else 1
        every_nth = whole.index_select(dim, torch.arange(rank, whole.shape[dim], n))
        fan_in = max(1, min(right[rank].shape[1], trial.h))
        named = {
            "rank 0's part everywhere": alike and any(report["ops"] for report in trial.reports),
            "same numbers on every rank": alike,
            "a seed for each rank": own_seeds(trial, got),
            "another rank's part": any(same(got[rank], one) for one in right),
            "every n-th": same(got[rank], every_nth),
            "rounded on the way": (got[rank] - right[rank]).abs().max() < 1e-2 * whole.abs().max(),
            "another distribution": got[rank].abs().max() > 1.001 / math.sqrt(fan_in),
            "other numbers": True,
        }
    entry = next(entry for entry, holds in named.items() if holds)
    head = SAYS.of("head", name=name, rank=rank, when=trial.when)[1]
    return SAYS(entry, head=head, n=n, scaled=scaled)


def _look_at_what_is_left(trial: Trial) -> None:
    """Hold the generator and the memory against those of one process that has drawn the layer."""
    for rank, report in enumerate(trial.reports):
        if not torch.equal(report["next"], trial.following):
            raise SAYS("generator out of step", rank=rank, when=trial.when)
    for rank, report in enumerate(trial.reports):
        for kept, owed in zip(report["kept"], trial.owed[rank], strict=True):
            size = owed.part.nbytes
            if kept > size and owed.part.numel() < owed.whole.numel():
                about = {"rank": rank, "when": trial.when, "name": owed.name}
                raise SAYS("whole kept alive #1", kept=kept, size=size, **about)
        if report["left"]:
            left = max(report["left"])
            raise SAYS("whole kept alive #2", rank=rank, left=left, when=trial.when)


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
    if way == COLUMNS:
        own = slice(*span(f, n, rank))
        return [Owed("weight", weight[own], weight), Owed("bias", bias[own], bias)]
    own = slice(*span(h, n, rank))
    return [Owed("weight", weight[:, own], weight), Owed("bias", bias, bias)]


def same(a: Tensor, b: Tensor) -> bool:
    """Drawn by the same generator in the same order: equal but for the last bit of a scaling."""
    return a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=1e-6, atol=1e-9)


def own_seeds(trial: Trial, got: list[Tensor]) -> bool:
    """Whether each rank drew a layer of its part's size, or the whole, from the seed plus r."""
    n = len(got)
    for step, plus in itertools.product((1, 10, 100, 1000), (0, 1)):
        seeds = [trial.seed + step * rank + plus for rank in range(n)]
        small = [dense(*one.shape[::-1], seed)[0] for one, seed in zip(got, seeds, strict=True)]
        wholes = [dense(trial.h, trial.f, seed)[:2] for seed in seeds]
        large = [parts(*whole, trial.way, n, rank)[0].part for rank, whole in enumerate(wholes)]
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
