"""`agreed_step` of lesson 10: unscale, agree, clip, and step or skip, identically on all ranks. The
step of a shard reveals the factor on its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_classroom.judge import bench, frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on, refuse_none
from course_lessons.lesson_09 import each
from course_lib.collectives.call import Group

RATE, MOMENTUM = 0.1, 0.9
SCALE = {3: 1025.0, 2: 3.0}  # the first, by the number of ranks: half of half of it is less than 1
# (kind, most relative to the norm, size of the gradients). Only one rank has nonfinite values. The
# last has an inf, of two next to a NaN, which a maximum over the ranks would drop; the first has a
# NaN. In the first step even scaled gradients are short, so that no clipping hides an error. In the
# fifth nothing is clipped, and in the last the norm is so small that 1e-6 matters.
STEPS = (("good", None, 1.0), ("inf", 0.5, 1.0), ("good", 0.4, 1.0))
STEPS += (("NaN", 3.0, 1.0), ("good", 1.2, 1.0), ("good", 0.7, 1e-5))
# Lengths of each rank's parts: uneven, and with three ranks one shard is empty.
SIZES = {3: ((5, 3), (0,), (4, 2)), 2: ((5, 3), (6, 2))}
ONE, CLOSE, LOOSE = 1e-6, 1e-8, 1e-5  # tolerances of a factor, perhaps float32, and of elements
FEW = 4 * 8  # bytes: a norm, a flag and some more
SAYS = words.Page(__file__, "agreed_step")


class Step(NamedTuple):
    """A step: its kind, the rank with an overflow, and the true gradients of every rank's parts."""

    kind: str
    culprit: int | None
    scale: float
    most: float
    norm: float
    true: list[list[Tensor]]

    def nan(self) -> bool:
        return self.kind == "NaN" or (self.kind == "inf" and len(self.true) == 2)

    def clipped(self, length: float) -> float:
        """Return the factor for a gradient whose norm is assumed to be `length`."""
        return min(1.0, self.most / (length + 1e-6))


def drawn(seed: int, n: int) -> tuple[list[list[Tensor]], list[Step]]:
    """Return every rank's part of the weights before the first step, and the list of steps."""
    made = torch.Generator().manual_seed(seed)

    def numbers(size: float = 1.0) -> list[list[Tensor]]:
        return [
            [size * torch.randn(k, generator=made, dtype=torch.float64) for k in own]
            for own in SIZES[n]
        ]

    start, steps, scale = numbers(), [], SCALE[n]
    for kind, portion, size in STEPS:
        true = numbers(size)
        norm, culprit = _norm(g for own in true for g in own), {"inf": n - 1, "NaN": 0}.get(kind)
        most = norm * (portion or 3 * scale)
        steps.append(Step(kind, culprit, scale, most, norm, true))
        scale /= 1 if kind == "good" else 2
    return start, steps


def train(function: Callable, group: Group, seed: int) -> list[dict]:
    """Run six steps of the answer on this rank's parts, each in a separate parameter group."""
    n, rank, reports = group.size(), group.rank(), []
    start, steps = drawn(seed, n)
    parts = [nn.Parameter(x) for x in start[rank]]
    optimizer = torch.optim.SGD([{"params": [p]} for p in parts], lr=RATE, momentum=MOMENTUM)
    for step in steps:
        for p, g in zip(parts, step.true[rank], strict=True):
            p.grad = g * step.scale
        if rank == step.culprit and step.kind == "inf":
            parts[-1].grad[1] = math.inf if n == 2 else -math.inf
        if rank == step.culprit and step.nan():
            parts[0].grad[1] = math.nan
        before, moment, given = _flat(parts), _moment(optimizer, parts), list(parts)
        out, facts = bench.watched(
            lambda s=step, own=given: function(own, optimizer, s.scale, s.most, group)
        )
        pair = out if isinstance(out, (tuple, list)) and len(out) == 2 else (None, None)
        factor, off = _factor(before - _flat(parts), moment, _flat(step.true[rank]))
        report = {
            "kind": bench.kind(out),
            "stepped": each.value_of(pair[0]),
            "scale": each.value_of(pair[1]),
            "factor": factor,
            "off": off,
            "bytes": facts["bytes"],
            "moved": not torch.equal(before, _flat(parts)),
            "moments moved": not torch.equal(moment, _moment(optimizer, parts)),
            "left": sum(p.grad is not None for p in parts),
            "changed": list(map(id, given)) != list(map(id, parts)),
        }
        reports.append(report)
    return reports


def judge_overflow(answer: Answer, judge: Judge) -> None:
    """Try six steps on three ranks, then on two ranks that are not the first two."""
    judge.take(answer, __name__, each.__name__)
    seed = looking.fresh_seed()
    for members in (looking.THREE, looking.TWO):
        n, when = len(members), on(members)
        empty = [rank for rank, own in enumerate(SIZES[n]) if not sum(own)]
        trial = judge.trial(answer, train, seed, members=members, when=when, empty=empty)
        for k, step in enumerate(drawn(seed, n)[1]):
            look_at([of_rank[k] for of_rank in trial], step, f"{when}, in step {k + 1}")


def look_at(reports: list[dict], step: Step, where: str) -> None:
    """Check one step: its result, its effect, and the next scale."""
    good, most = step.culprit is None, 2 * (len(reports) - 1) / len(reports) * FEW
    refuse_none(reports, where, "whether it stepped, and the next scale")
    form = {
        "not a pair": lambda one: None in (one["stepped"], one["scale"]),
        "skipped without reason": lambda one: good and not one["stepped"],
    }
    SAYS.refuse_each(reports, form, where=where)
    (look_at_a_step if good else look_at_a_skip)(reports, step, where)
    scales = {one["scale"] for one in reports}
    wrong = scales != {step.scale if good else step.scale / 2}
    looks = {
        "a step of zeros": lambda one: not good and one["moments moved"],
        "not by the optimizer": lambda one: good and one["factor"] and not one["moments moved"],
        "ranks with different scales": lambda one: len(scales) > 1,
        "wrong scale": lambda one: wrong and good,
        "scale not halved": lambda one: wrong,
        "gradients left": lambda one: one["left"],
        "input changed": lambda one: one["changed"],
        "too much sent": lambda one: one["bytes"] > most,
    }
    SAYS.refuse_each(reports, looks, what=step.kind, where=where)


def look_at_a_skip(reports: list[dict], step: Step, where: str) -> None:
    """Check that no rank made a step that any rank had reason to skip."""
    who = step.culprit
    stepped = [rank for rank, one in enumerate(reports) if one["stepped"] or one["moved"]]
    holds = {
        "NaN let through": who in stepped and step.nan(),
        "stepped despite an inf": who in stepped,
        "no agreement": stepped,
    }
    rank = min(stepped, default=None)
    SAYS.refuse(holds, who=who, what=step.kind, stepped=rank, where=where)


def look_at_a_step(reports: list[dict], step: Step, where: str) -> None:
    """Raise a Finding, if possible with an idea, if the step did not use the right factor."""

    def by(factors: list[float], off: float = CLOSE, far: float = ONE) -> bool:
        return all(
            math.isclose(one["factor"], factor, rel_tol=far, abs_tol=1e-12) and one["off"] <= off
            for one, factor in zip(reports, factors, strict=True)
            if one["factor"] is not None
        )

    right = [step.clipped(step.norm)] * len(reports)
    if by(right):
        return
    holds = {entry: True for entry, factors in ideas(step) if by(factors)}
    holds |= {"rounded on the way": by(right, LOOSE, LOOSE), "wrong factor": True}
    head = f"The step {where} does not use the correct gradient."
    SAYS.refuse(holds, head=head, where=where)


def ideas(step: Step) -> Iterator[tuple[str, list[float]]]:
    """Yield each wrong idea's factors on the true gradient, for all ranks."""
    scale, most, norm, n = step.scale, step.most, step.norm, len(step.true)
    norms, always = list(map(_norm, step.true)), most / (norm + 1e-6)
    parts = [_norm([g]) for own in step.true for g in own]
    for entry, *factors in (
        ("squared norm", always if norm**2 > most else 1.0),
        ("not unscaled", scale * step.clipped(scale * norm), scale, scale * step.clipped(norm)),
        ("clipped before unscaling", step.clipped(scale * norm)),
        ("unscaled twice", step.clipped(norm) / scale),
        ("not clipped", 1.0),
        ("made longer", always),
        ("squared norm", step.clipped(norm**2)),
        ("norms added up", *(step.clipped(f(norms)) for f in (sum, max)), step.clipped(sum(parts))),
        ("a mean of squares", step.clipped(norm / n**0.5)),
        ("1e-6 left out", min(1.0, most / norm)),
        ("no step", 0.0),
    ):
        yield from ((entry, [factor] * n) for factor in factors)
    yield "shard norm", list(map(step.clipped, norms))


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([x.detach().flatten() for x in tensors])


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(_flat(tensors).norm())


def _moment(optimizer: torch.optim.Optimizer, parts: Sequence[Tensor]) -> Tensor:
    return _flat([optimizer.state.get(p, {}).get("momentum_buffer", 0 * p) for p in parts])


def _factor(moved: Tensor, moment: Tensor, true: Tensor) -> tuple[float | None, float]:
    """Return the factor on the true gradient, and the largest error that it leaves."""
    if not true.numel():
        return None, 0.0
    step = moved / RATE - MOMENTUM * moment
    factor = float((step * true).sum() / true.square().sum())
    # A weight is about 1, which limits the precision of a difference of two.
    off = (step - factor * true).abs() - 1e-13 * max(1.0, abs(factor))
    return factor, float((off.clamp(min=0) / (factor * true).abs()).nan_to_num(0.0).max())


OVERFLOW = frame.Exercise(judge=judge_overflow, **SAYS.about)
