"""`conjugates` of lesson 03: what right means for f and g, and how wrong pairs are recognised.

A pair is tried alone, beside others that need the same tensors, and in a net that learns; held
against dense results (values and gradients) and against one message each, in its own phase.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_world_numbers
from course_lib.classroom.checks.lesson_03 import trial as runs
from course_lib.classroom.checks.lesson_03.trial import FACTOR, STEPS, Shape, nearly, numbers
from course_lib.classroom.checks.looking import (
    ITEM,
    THREE,
    TWO,
    all_near,
    came_back,
    counted,
    fresh_seed,
    ideas,
    near,
    refuse_general,
    refuse_idea,
)
from course_lib.classroom.checks.words import Page
from course_lib.layout import span
from course_lib.ledger import forms

SAYS = Page("lesson_03/conjugates")


class Trial(NamedTuple):
    """One run of the learner's pair on a group, and what each rank reports of it."""

    members: list[int]
    seed: int
    shape: Shape
    reports: list
    when: str

    @property
    def n(self) -> int:
        return len(self.members)

    def each(self, name: str) -> list[Tensor]:
        """The numbers of that name, of every rank."""
        return [numbers(self.seed, name, r, *self.shape) for r in range(self.n)]

    def same(self, name: str) -> Tensor:
        """The numbers of that name which all ranks hold."""
        return self.each(name)[0]

    @property
    def right(self) -> dict[tuple[str, str], Tensor]:
        """What f and g alone should give, the same on every rank: first there, then back."""
        there = {("f", "out"): self.same("x"), ("g", "out"): sum(self.each("p"))}
        return there | {("f", "grad"): sum(self.each("w")), ("g", "grad"): self.same("v")}


def judge_conjugates(answer: Answer, judge: Judge) -> None:
    """Try f and g; raise the Finding that explains best what is wrong."""
    runs.refuse_ready_made(answer)
    judge.take(answer, runs.__name__)
    seed = fresh_seed()
    shape = [4 + seed % 2, 7 + seed % 2]

    def tried(run: Callable, members: list[int], given: list = shape) -> Trial:
        reports = judge.trial(answer, run, seed, given, members=members, when=on(members))
        return Trial(members, seed, shape, reports, on(members))

    _look_alone(answer, tried(runs.alone, THREE))
    try:
        with _named("two at once"):
            both = tried(runs.at_once, THREE)
        _look_at_once(both)
    except Finding:
        try:  # is it not the second pair that is in the way, but any smaller group?
            _look_alone(answer, tried(runs.alone, TWO))
        except Finding as found:
            if found.name in ("group left out", "not of the group"):
                raise
        raise
    _look_alone(answer, tried(runs.alone, TWO))
    _look_shared(tried(runs.shared, THREE))
    _look_layouts(tried(runs.layouts, THREE))
    kinds = [([], "float64"), ([5], "float64"), ([2, 5, 4], "float64"), ([6, 5], "float32")]
    with _named("another shape"):
        several = tried(runs.shapes, TWO, kinds)
    _look_shapes(several, kinds)
    for members, hidden in ((THREE, 7), (TWO, 5)):
        dims = [6, 3 + seed % 2, hidden, 9]
        _look_net(tried(runs.net, members, dims), dims)


@contextlib.contextmanager
def _named(entry: str) -> Iterator[None]:
    """An answer that was right before and fails in here, by what is tried here."""
    try:
        yield
    except Finding as found:
        if found.name not in ("raised", "deadlock", "not called by all", "group left out"):
            raise
        raise SAYS(entry, what=found.text) from None


def _refuse(looks: Mapping[str, bool], **about: object) -> None:
    """The Finding of the first look that is not fine."""
    for entry, fine in looks.items():
        if not fine:
            raise SAYS(entry, **about)


def _look_alone(answer: Answer, trial: Trial) -> None:
    n, reports, when = trial.n, trial.reports, trial.when
    for report in reports:
        if report["kind"]:
            raise SAYS("not a pair", kind=report["kind"])
    each = [(which, rank, r[which]) for which in "fg" for rank, r in enumerate(reports)]
    for which, rank, report in each:
        if report["out"] is None:
            about = {"which": which, "rank": rank, "shape": trial.shape, "when": when}
            advice = " Did you forget `return`?" if report["kind"] == "NoneType" else ""
            raise SAYS("not like x", got=came_back(report), advice=advice, **about)
    (x, total, gradient, v), ps, ws = trial.right.values(), trial.each("p"), trial.each("w")
    seen = {stage: [report[stage[0]][stage[1]] for report in reports] for stage in trial.right}
    if all_near(seen["f", "out"], [n * x] * n) and all_near(seen["g", "out"], ps):
        raise SAYS("swapped")
    changed = {which for which, _, report in each if report["changed"]}
    _refuse({"f in place": "f" not in changed, "g in place #1": "g" not in changed})
    wrong = [  # what wrong ideas give, at each stage, and the entry where none is recognised
        ({"f changes its values #1": [n * x] * n}, "f changes its values #2"),
        ({"nothing summed": ps, "mean": [total / n] * n}, "not the sum"),
        (
            {"nothing summed on the way back": ws, "mean on the way back #1": [gradient / n] * n},
            "gradient of f",
        ),
        (
            {"summed on the way back as well": [n * v] * n, "mean on the way back #2": [v / n] * n},
            "gradient of g",
        ),
    ]
    for ((which, key), right), (gives, otherwise) in zip(trial.right.items(), wrong, strict=True):
        found = seen[which, key]
        if key == "grad" and any(one is None for one in found):
            raise SAYS("no way back", which=which, when=when)
        if all_near(found, [right] * n):
            continue
        refuse_idea(found, ideas(SAYS, gives, n=n), when)
        if n == 2:
            refuse_world_numbers(answer, when)
        refuse_general(found, [right] * n, when, what="gradient" if key == "grad" else "sum")
        raise SAYS(otherwise, when=when)
    _look_at_traffic(each, trial)


def _look_at_traffic(each: list[tuple[str, int, dict]], trial: Trial) -> None:
    most = forms.all_reduce(trial.n, prod(trial.shape) * ITEM)
    for which, rank, report in each:
        sends, silent = ("back", "there") if which == "f" else ("there", "back")
        about = {"which": which, "rank": rank, "when": trial.when}
        ops, sent = report[sends]["ops"], report[sends]["bytes"]
        if report[silent]["ops"]:
            ops = counted(report[silent]["ops"])
            raise SAYS("sends where nothing is owed", ops=ops, way=silent, **about)
        if sum(ops.values()) != 1 or sent > most:
            about |= {"ops": counted(ops), "bytes": sent, "most": most}
            raise SAYS("more than one all-reduce", way=sends, **about)


def _look_at_once(trial: Trial) -> None:
    """A pair of one group, while another pair of another group is in use."""
    ws, v, x = trial.each("w"), trial.same("v"), trial.same("x")
    for rank, report in enumerate(trial.reports):
        for seen, w in zip(report, (sum(ws), ws[rank]), strict=True):
            if not all_near(seen, (x * w, v * w)):
                what = f"On rank {rank} one of the two gives another result than alone."
                raise SAYS("two at once", what=what)


def _look_shared(trial: Trial) -> None:
    """A branch beside f, an operation before g: what was written into shows in their gradients."""
    c, v, n = trial.each("c"), trial.same("v"), trial.n
    ps = [q.exp() for q in trial.each("q")]
    total, both = sum(ps), sum(c) + sum(trial.each("w"))
    for rank, (report, p) in enumerate(zip(trial.reports, ps, strict=True)):
        summed = near(report["u"], FACTOR * sum(c))
        looks = {
            "f in place on the way back": near(report["u"], FACTOR * c[rank]),
            "f beside a branch": near(report["x"], sum(c)),
            "g in place #2": all_near((report["p"], report["q"]), (p, p * (3 * v + c[rank]))),
            "one buffer for all #1": all_near(report["sums"], (total, 2 * total)),
            "a hook on x itself": not near(report["twice"], n * both),
            "one buffer for all #2": near(report["twice"], both),
        }
        what = f"the sum over {n} ranks" if summed else "something else"
        _refuse(looks, n=n, rank=rank, when=trial.when, what=what)


def _look_shapes(trial: Trial, kinds: list[tuple[Shape, str]]) -> None:
    """Tensors of other shapes, and of another dtype."""
    for (shape, dtype), *reports in zip(kinds, *trial.reports, strict=True):
        for (which, key), right in trial._replace(shape=shape).right.items():
            for rank, report in enumerate(report[which] for report in reports):
                if report["dtype"] != dtype:
                    about = {"got": report["dtype"], "rank": rank, "when": trial.when}
                    raise SAYS("another dtype", which=which, dtype=dtype, **about)
                alike = near if dtype == "float64" else nearly
                if report[key] is None or not alike(report[key].double(), right):
                    what = f"For {dtype} of shape {shape} result or gradient are not."
                    raise SAYS("another shape", what=what)


def _look_layouts(trial: Trial) -> None:
    """Tensors that are not one block of memory."""
    total, gradient = (
        sum(trial.each("p")),
        sum(trial._replace(shape=trial.shape[::-1]).each("w")).t(),
    )
    ones = torch.full_like(total, float(trial.n))
    for rank, report in enumerate(trial.reports):
        blocks = [report[key] for key in ("ones", "y", "x")]
        looks = {
            "g in place #3": not report["changed"],
            "only with a gradient": near(report["data"], trial.same("x") + total),
            "another layout #1": all_near(blocks, (ones, total.t(), gradient)),
            "another layout #2": all_near(report["apart"], (total, gradient)),
        }
        _refuse(looks, rank=rank, when=trial.when)


def _look_net(trial: Trial, dims: Shape) -> None:
    """Steps of SGD against the net in one piece."""
    dense = runs.trained(torch.clone, torch.clone, trial.seed, dims, slice(None))
    for again, how in enumerate(("", " under torch.utils.checkpoint")):
        for rank, report in enumerate(trial.reports):
            mine = slice(*span(dims[2], trial.n, rank))
            right = dense | {
                "the first weight": dense["the first weight"][:, mine],
                "the second weight": dense["the second weight"][mine],
            }
            wrong = [what for what in right if not near(report[again][what], right[what])]
            if wrong:
                about = {"how": how, "wrong": " and ".join(wrong), "rank": rank}
                name, text = SAYS.of("not the dense net", steps=STEPS, when=trial.when, **about)
                raise Finding(name + how, text)


CONJUGATES = Exercise(judge=judge_conjugates, **SAYS.about)
