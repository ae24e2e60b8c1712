"""Looks at the trials of an answer in a fixed order, with wrong ideas recognised by value.

A lesson's check defines each look for its exercise; the order and the common findings are here.
Every check of a function on ranks uses this module, from lesson 06 on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from course_classroom.judge import general
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.judge import WORLD, refuse_world_numbers
from course_classroom.judge.words import Words


@dataclass
class Misses:
    """A record of the failed comparisons with `near`."""

    kinds: list[str] = field(default_factory=list)  # dtypes that were too narrow
    off: bool = False  # a value was further off than rounding explains


_misses: ContextVar[Misses | None] = ContextVar("misses", default=None)
TOLERANCE, ITEM = 1e-10, 8  # for float64: relative and absolute tolerance, and bytes
Value = Tensor | float | None
THREE, TWO = [0, 1, 2], [1, 2]  # two must not be the notebook's first two ranks


class Trial(Protocol):
    """One run of an answer on a group: each rank's report, and a description of the trial."""

    reports: list[dict]
    when: str


Look = Callable[[Trial], None]


def _pass(trial: Trial) -> None:
    """Accept any trial, for exercises that omit this look."""


@dataclass(frozen=True, kw_only=True)
class Looks:
    """The looks at a trial, in the order of the fields; each raises a Finding or returns.

    A later look is only useful if all earlier looks pass.
    """

    returned: Look = _pass
    shape: Look = _pass
    unchanged: Look = _pass
    value: Look = _pass
    gradients: Look = _pass
    traffic: Look = _pass
    memory: Look = _pass
    later_steps: Look = _pass

    def at(self, answer: Answer, trials: Iterable[Trial], first_alone: bool = False) -> None:
        """Look at the values of every trial, then at the gradients of every trial, and so on.

        Trials run on demand, so a wrong value ends them. With `first_alone`, the other looks at a
        right first trial precede the report of a wrong later trial.
        """
        right: list[Trial] = []
        for trial in trials:
            try:
                for look in (self.returned, self.shape, self.unchanged, self.value):
                    look(trial)
            except Finding:
                if len(trial.reports) < WORLD and any(len(t.reports) == WORLD for t in right):
                    refuse_world_numbers(answer, trial.when)
                for before in right[:1] if first_alone else ():
                    self.gradients(before)
                    self.later_steps(before)
                raise
            right.append(trial)
        for look in (self.gradients, self.traffic, self.memory, self.later_steps):
            for trial in right:
                look(trial)


class Idea(NamedTuple):
    """A wrong idea: its name, its text, and its values on each rank."""

    name: str
    text: str
    gives: Sequence[Tensor | float]


def ideas(
    says: Words, gives: Mapping[str, Sequence] | Iterable[tuple[str, Sequence]], **about: object
) -> Iterator[Idea]:
    """Yield ideas by their entries in `says`, with their values on each rank, in order."""
    for entry, given in gives.items() if isinstance(gives, Mapping) else gives:
        yield Idea(*says.of(entry, **about), given)


def recognise(seen: Sequence, ideas: Iterable[Idea]) -> Idea | None:
    """Return the first idea that gives the observed values on every rank."""
    return next((idea for idea in ideas if explains(idea, seen)), None)


def explains(idea: Idea, seen: Sequence) -> bool:
    """Return True if an idea gives the observed values on every rank."""
    return all_alike(seen, idea.gives) or _explains_rounded(idea, seen)


def _explains_rounded(idea: Idea, seen: Sequence) -> bool:
    """Return True if an idea fits up to rounding, and the right values are further away."""
    misses = _misses.get()
    if not (misses and misses.off) or len(seen) != len(idea.gives):
        return False
    return all(
        alike(one, gives) or bool(_narrower(one, gives))
        for one, gives in zip(seen, idea.gives, strict=True)
    )


def refuse_idea(seen: Sequence, ideas: Iterable[Idea], when: str, head: str = "") -> None:
    """Raise the Finding of an idea that gives the observed values, if there is one."""
    idea = recognise(seen, ideas)
    if idea:
        raise Finding(idea.name, f"{head}{idea.text} ({when}.)")


def refuse_general(
    seen: Sequence[Tensor | None],
    right: Sequence[Tensor | float],
    when: str,
    *,
    sizes: Mapping[str, int] | None = None,
    what: str = "result",
) -> None:
    """Raise the Finding of a general mistake; call it after the exercise's own looks.

    `seen` and `right` hold one tensor or number for each rank of the group. `sizes` are other
    counts over which a mean is possible, such as `{"rows": 5}`; repeated sizes are not named.
    """
    found = general.recognised(seen, right, {"ranks": len(right), **(sizes or {})}, alike, what)
    if found:
        raise Finding(found.name, f"{found.text} ({when}.)")


def near(seen: Value, wanted: Value) -> bool:
    """Return True if a value and the right value are `alike`. A miss is recorded, so that the frame
    can report rounding as the only error. For other comparisons use `alike`."""
    if alike(seen, wanted):
        return True
    misses = _misses.get()
    if misses is not None:
        kinds = _narrower(seen, wanted)
        misses.kinds += kinds
        misses.off = misses.off or not kinds
    return False


def alike(seen: Value, other: Value, tolerance: float = TOLERANCE) -> bool:
    """Return True if two values are equal up to rounding; NaN equals NaN, an infinity equals
    itself, and None equals None."""
    if seen is None or other is None:
        return seen is other
    seen, other = _tensors(seen, other)
    if not _comparable(seen, other) or seen.dtype != other.dtype:
        return False
    return torch.allclose(seen, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def _narrower(seen: Value, wanted: Value) -> list[str]:
    if seen is None or wanted is None:
        return []
    seen, wanted = _tensors(seen, wanted)
    return general.narrower(seen, wanted) if _comparable(seen, wanted) else []


def _tensors(*values: Tensor | float) -> list[Tensor]:
    return [x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64) for x in values]


def _comparable(seen: Tensor, other: Tensor) -> bool:
    return seen.shape == other.shape and _plain(seen) and _plain(other)


def _plain(x: Tensor) -> bool:
    """Return True for a tensor of readable real numbers: strided, not on meta, not complex."""
    return x.layout == torch.strided and x.device.type != "meta" and not x.is_complex()


@contextlib.contextmanager
def rounded() -> Iterator[Misses]:
    """Collect the failed comparisons with `near` inside the `with` block."""
    misses = Misses()
    token = _misses.set(misses)
    try:
        yield misses
    finally:
        _misses.reset(token)


def all_near(seen: Sequence, wanted: Sequence) -> bool:
    """Return True if the lengths agree and each value is near its right value; record misses."""
    misses = [k for k, pair in enumerate(zip(seen, wanted, strict=False)) if not near(*pair)]
    return len(seen) == len(wanted) and not misses


def all_alike(seen: Sequence, others: Sequence) -> bool:
    """Return True if the lengths agree and all pairs are alike; record no misses."""
    return len(seen) == len(others) and all(map(alike, seen, others))


def refuse_changed(trial: Trial, what: str) -> None:
    """Raise a Finding if the answer changed its inputs, which `what` describes."""
    for rank, report in enumerate(trial.reports):
        if report["changed"]:
            raise general.SAYS("input changed", what=what, rank=rank, when=trial.when)


def another_step(trial: Trial, rank: int, step: int, name: str = "wrong second step") -> Finding:
    """Return the Finding for an answer that is right only in the first step."""
    about = {"step": step + 1, "rank": rank, "when": trial.when}
    return Finding(name, general.SAYS.of("wrong second step", **about)[1])


def came_back(report: Mapping) -> str:
    """Describe the result that an answer returned."""
    if report["shape"] is None:
        return f"a {report['kind']}"
    return f"a tensor of shape {report['shape']} and dtype {report['dtype']}"


def counted(ops: Mapping[str, int]) -> str:
    """Count the messages of each kind, in words."""
    return " and ".join(f"{count} {op}" for op, count in ops.items()) or "nothing"


def fresh_seed() -> int:
    """Return a seed for one check that no answer can know."""
    return int.from_bytes(os.urandom(3), "big")
