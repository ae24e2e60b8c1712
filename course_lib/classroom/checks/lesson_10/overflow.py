"""`agreed_step` of lesson 10: unscale, agree, clip, and step or leave it, all ranks alike.

One process has all gradients of six steps, two of which meet an inf or a NaN on one rank; from what
a step did to a shard follows by which factor its gradient was multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_09 import each
from course_lib.classroom.checks.lesson_09.each import refuse_each, value_of
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed
from course_lib.classroom.checks.words import Page
from course_lib.collectives.call import Group

RATE, MOMENTUM, SCALE = 0.1, 0.9, 1025.0
# (kind, most as a part of the norm, size of the gradients); what is not finite comes in on one rank
# alone. In the first step even what is still scaled is not too long, so that no clipping hides it;
# in the fifth nothing is clipped; in the last the norm is so small that 1e-6 beside it counts.
STEPS = (("good", 3 * SCALE, 1.0), ("inf", 0.5, 1.0), ("good", 0.4, 1.0))
STEPS += (("NaN", 3.0, 1.0), ("good", 1.2, 1.0), ("good", 0.7, 1e-5))
# Lengths of each rank's parts: uneven, and one rank's shard is empty among three.
SIZES = {3: ((5, 3), (0,), (4, 2)), 2: ((5, 3), (6, 2))}
ONE, CLOSE, LOOSE = 1e-6, 1e-8, 1e-5  # of a factor, maybe a float32; from element to element
FEW = 4 * 8  # bytes: a norm, a flag and some more
SAYS = Page("lesson_10/agreed_step")


class Step(NamedTuple):
    """One step: what it meets, and the true gradients of every rank's parts."""

    kind: str
    scale: float
    most: float
    norm: float
    true: list[list[Tensor]]

    def culprit(self) -> int | None:
        """The rank that has an inf, the last one, or a NaN, the first one."""
        return {"inf": len(self.true) - 1, "NaN": 0}.get(self.kind)

    def clipped(self, length: float) -> float:
        """By what a gradient is multiplied whose norm is taken to be `length`."""
        return min(1.0, self.most / (length + 1e-6))


def drawn(seed: int, n: int) -> tuple[list[list[Tensor]], list[Step]]:
    """The weights of every rank's parts before the first step, and the steps."""
    made = torch.Generator().manual_seed(seed)

    def numbers(size: float = 1.0) -> list[list[Tensor]]:
        draw = partial(torch.randn, generator=made, dtype=torch.float64)
        return [[size * draw(k) for k in own] for own in SIZES[n]]

    start, steps, scale = numbers(), [], SCALE
    for kind, portion, size in STEPS:
        true = numbers(size)
        norm = float(_flat([g for own in true for g in own]).norm())
        steps.append(Step(kind, scale, portion * norm, norm, true))
        scale /= 1 if kind == "good" else 2
    return start, steps


def train(function: Callable, group: Group, seed: int) -> list[dict]:
    """Six steps of the answer on this rank's parts, each in a parameter group of its own."""
    n, rank, reports = group.size(), group.rank(), []
    start, steps = drawn(seed, n)
    parts = [nn.Parameter(x) for x in start[rank]]
    optimizer = torch.optim.SGD([{"params": [p]} for p in parts], lr=RATE, momentum=MOMENTUM)
    for step in steps:
        for p, g in zip(parts, step.true[rank], strict=True):
            p.grad = g * step.scale
        if rank == step.culprit():
            if step.kind == "inf":
                parts[-1].grad[1] = math.inf if n == 2 else -math.inf
            else:
                parts[0].grad[1] = math.nan
        before, moment, given = _flat(parts), _moment(optimizer, parts), list(parts)
        out, facts = bench.watched(
            lambda s=step, own=given: function(own, optimizer, s.scale, s.most, group)
        )
        pair = out if isinstance(out, (tuple, list)) and len(out) == 2 else (None, None)
        factor, off = _factor(before - _flat(parts), moment, _flat(step.true[rank]))
        report = {"kind": bench.kind(out), "stepped": value_of(pair[0]), "scale": value_of(pair[1])}
        report |= {"factor": factor, "off": off, "bytes": facts["bytes"]}
        report["moved"] = not torch.equal(before, _flat(parts))
        report["moments moved"] = not torch.equal(moment, _moment(optimizer, parts))
        report["left"] = sum(p.grad is not None for p in parts)
        report["changed"] = list(map(id, given)) != list(map(id, parts))
        reports.append(report)
    return reports


def judge_overflow(answer: Answer, judge: Judge) -> None:
    """Six steps on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, __name__, each.__name__)
    seed = fresh_seed()
    for members in (THREE, TWO):
        n, when = len(members), on(members)
        empty = [rank for rank, own in enumerate(SIZES[n]) if not sum(own)]
        trial = judge.trial(answer, train, seed, members=members, when=when, empty=empty)
        for k, step in enumerate(drawn(seed, n)[1]):
            reports, where = [of_rank[k] for of_rank in trial], f"{when}, in step {k + 1}"
            refuse_none(reports, where, "whether it stepped, and the next scale")
            no_pair = {"not a pair": lambda one: None in (one["stepped"], one["scale"])}
            refuse_each(SAYS, reports, no_pair, where=where)
            look = look_at_a_step if step.kind == "good" else look_at_a_skip
            look(reports, step, where)
            look_at_scales(reports, step, where)
            rest = {
                "gradients left": lambda one: one["left"],
                "input changed": lambda one: one["changed"],
                "too much sent": lambda one, n=n: one["bytes"] > 2 * (n - 1) / n * FEW,
            }
            refuse_each(SAYS, reports, rest, where=where)


def look_at_a_skip(reports: list[dict], step: Step, where: str) -> None:
    """A step that one rank has reason to leave out."""
    who = step.culprit()
    stepped = [rank for rank, one in enumerate(reports) if one["stepped"] or one["moved"]]
    if who in stepped:
        entry = "NaN let through" if step.kind == "NaN" else "stepped all the same"
        raise SAYS(entry, who=who, where=where)
    if stepped:
        raise SAYS("decided alone", who=who, what=step.kind, stepped=stepped[0], where=where)
    zeros = {"a step of zeros": lambda one: one["moments moved"]}
    refuse_each(SAYS, reports, zeros, what=step.kind, where=where)


def look_at_a_step(reports: list[dict], step: Step, where: str) -> None:
    """A step that is to be made, by the right factor."""
    unmoved = {"left out without reason": lambda one: not one["stepped"]}
    refuse_each(SAYS, reports, unmoved, where=where)
    if (entry := idea_of(reports, step)) == "right":
        by_hand = {"not by the optimizer": lambda one: one["factor"] and not one["moments moved"]}
        return refuse_each(SAYS, reports, by_hand, where=where)
    if entry:
        name, text = SAYS.of(entry)
        raise Finding(name, f"The gradient is not the one to step with {where}. {text}")
    right = step.clipped(step.norm)
    if all(one["factor"] is None or _by(one, right, LOOSE, LOOSE) for one in reports):
        raise SAYS("rounded on the way", where=where)
    raise SAYS("wrong factor", where=where)


def idea_of(reports: list[dict], step: Step) -> str | None:
    """By whose factor all ranks that have elements stepped: "right", an idea's, or None."""
    seen = [(rank, one) for rank, one in enumerate(reports) if one["factor"] is not None]
    fits = (
        entry
        for entry, factors in ideas(step).items()
        if all(_by(one, factors[rank]) for rank, one in seen)
    )
    return next(fits, None)


def ideas(step: Step) -> dict[str, list[float]]:
    """By what the true gradient would be multiplied on each rank under each idea."""
    scale, most, norm, n = step.scale, step.most, step.norm, len(step.true)
    norms, always = [float(_flat(own).norm()) for own in step.true], most / (norm + 1e-6)
    alike = {
        "right": step.clipped(norm),
        "a square for a norm #1": always if norm**2 > most else 1.0,
        "not unscaled #1": scale * step.clipped(scale * norm),
        "not unscaled #2": scale,
        "not unscaled #3": scale * step.clipped(norm),
        "clipped before unscaling": step.clipped(scale * norm),
        "unscaled twice": step.clipped(norm) / scale,
        "not clipped": 1.0,
        "made longer": always,
        "a square for a norm #2": step.clipped(norm**2),
        "norms added up #1": step.clipped(sum(norms)),
        "norms added up #2": step.clipped(sum(float(g.norm()) for own in step.true for g in own)),
        "norms added up #3": step.clipped(max(norms)),
        "a mean of squares": step.clipped(norm / n**0.5),
        "1e-6 left out": min(1.0, most / norm),
        "no step": 0.0,
    }
    own = {"its own norm": list(map(step.clipped, norms))}
    return {entry: [factor] * n for entry, factor in alike.items()} | own


def look_at_scales(reports: list[dict], step: Step, where: str) -> None:
    """Halved on all ranks by an overflow, else left."""
    scales = {one["scale"] for one in reports}
    if scales == {step.scale if step.kind == "good" else step.scale / 2}:
        return
    if len(scales) > 1:
        raise SAYS("ranks with different scales", where=where)
    raise SAYS("another scale" if step.kind == "good" else "scale not halved", where=where)


def _by(report: dict, factor: float, off: float = CLOSE, far: float = ONE) -> bool:
    """Whether a rank's gradient was multiplied by this factor."""
    close = math.isclose(report["factor"], factor, rel_tol=far, abs_tol=1e-12)
    return close and report["off"] <= off


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.detach().flatten() for x in tensors])


def _moment(optimizer: torch.optim.Optimizer, parts: Sequence[Tensor]) -> Tensor:
    return _flat([optimizer.state.get(p, {}).get("momentum_buffer", 0 * p) for p in parts])


def _factor(moved: Tensor, moment: Tensor, true: Tensor) -> tuple[float | None, float]:
    """By what the true gradient was multiplied, and how far no factor explains the step."""
    if not true.numel():
        return None, 0.0
    step = moved / RATE - MOMENTUM * moment
    factor = float((step * true).sum() / true.square().sum())
    # A weight is about 1, and a difference of two is as exact as they are.
    off = (step - factor * true).abs() - 1e-13 * max(1.0, abs(factor))
    return factor, float((off.clamp(min=0) / (factor * true).abs()).nan_to_num(0.0).max())


OVERFLOW = Exercise(judge=judge_overflow, **SAYS.about)
