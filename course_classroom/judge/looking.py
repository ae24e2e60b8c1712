"""Look at the trials of an answer: one order of looks, and wrong ideas known by what they give.

A lesson's check says what each look means for its exercise; the order and the common findings stand
here. Every check of a function that runs on ranks, from lesson 06 on.
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
    """What the comparisons with `near` that missed have met."""

    kinds: list[str] = field(default_factory=list)  # dtypes that were too narrow
    off: bool = False  # a value was further from the right one than any rounding takes it


_misses: ContextVar[Misses | None] = ContextVar("misses", default=None)
TOLERANCE, ITEM = 1e-10, 8  # of a float64: relative and absolute, and its bytes
Value = Tensor | float | None
THREE, TWO = [0, 1, 2], [1, 2]  # the two are not the notebook's first two: numbers of the group


class Trial(Protocol):
    """One run of an answer on a group: what each rank reports, and where it was, in words."""

    reports: list[dict]
    when: str


Look = Callable[[Trial], None]


def _pass(trial: Trial) -> None:
    """The look of an exercise that has nothing to look at here."""


@dataclass(frozen=True, kw_only=True)
class Looks:
    """What to look at in a trial, in the order of the fields; each raises a Finding or returns.

    What comes later is only worth a word where what comes earlier is right.
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
        """Look at the values of every trial, then at the gradients of every one, and so on.

        Trials are made as they are asked for: an answer that gives a wrong value is tried no more,
        and `first_alone` looks at all of the first trial before that is said.
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
    """A wrong idea by its name, words for who has it, and what it gives on each rank."""

    name: str
    text: str
    gives: Sequence[Tensor | float]


def ideas(
    says: Words, gives: Mapping[str, Sequence] | Iterable[tuple[str, Sequence]], **about: object
) -> Iterator[Idea]:
    """Ideas by their entries in `says`, with what each gives on each rank, in this order."""
    for entry, given in gives.items() if isinstance(gives, Mapping) else gives:
        yield Idea(*says.of(entry, **about), given)


def recognise(seen: Sequence, ideas: Iterable[Idea]) -> Idea | None:
    """The first idea that gives, on every rank, what was seen there."""
    return next((idea for idea in ideas if explains(idea, seen)), None)


def explains(idea: Idea, seen: Sequence) -> bool:
    """Whether an idea gives, on every rank, what was seen there."""
    return all_alike(seen, idea.gives) or _explains_rounded(idea, seen)


def _explains_rounded(idea: Idea, seen: Sequence) -> bool:
    """Whether it does but for rounding, where what was wanted is further away than that."""
    misses = _misses.get()
    if not (misses and misses.off) or len(seen) != len(idea.gives):
        return False
    return all(
        alike(one, gives) or bool(_narrower(one, gives))
        for one, gives in zip(seen, idea.gives, strict=True)
    )


def refuse_idea(seen: Sequence, ideas: Iterable[Idea], when: str, head: str = "") -> None:
    """Raise the Finding of the idea that gives what was seen, if one does."""
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
    """Raise the Finding of a mistake that any exercise may meet; call it after the exercise's own.

    `seen` and `right` hold one tensor or number for each rank of the group. `sizes` are what a mean
    may be taken over, beside the ranks: `{"rows": 5}`; a size that is met twice names nothing.
    """
    found = general.recognised(seen, right, {"ranks": len(right), **(sizes or {})}, alike, what)
    if found:
        raise Finding(found.name, f"{found.text} ({when}.)")


def near(seen: Value, wanted: Value) -> bool:
    """Whether a value is `alike` what is wanted. A miss is noted: the frame says where rounding
    is all that is wrong. Hold a value against anything else with `alike`."""
    if alike(seen, wanted):
        return True
    misses = _misses.get()
    if misses is not None:
        kinds = _narrower(seen, wanted)
        misses.kinds += kinds
        misses.off = misses.off or not kinds
    return False


def alike(seen: Value, other: Value, tolerance: float = TOLERANCE) -> bool:
    """Whether two are equal to rounding; a NaN is like a NaN, an infinity like itself, and nothing
    at all like nothing at all."""
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
    """Whether it holds numbers that can be looked at: not sparse, not on meta, not complex."""
    return x.layout == torch.strided and x.device.type != "meta" and not x.is_complex()


@contextlib.contextmanager
def rounded() -> Iterator[Misses]:
    """The dtypes through which values went, by all comparisons with `near` that missed inside."""
    misses = Misses()
    token = _misses.set(misses)
    try:
        yield misses
    finally:
        _misses.reset(token)


def all_near(seen: Sequence, wanted: Sequence) -> bool:
    """Whether as many are there as are wanted, each near its own; every miss is noted."""
    misses = [k for k, pair in enumerate(zip(seen, wanted, strict=False)) if not near(*pair)]
    return len(seen) == len(wanted) and not misses


def all_alike(seen: Sequence, others: Sequence) -> bool:
    """The same, held against what is not wanted."""
    return len(seen) == len(others) and all(map(alike, seen, others))


def refuse_changed(trial: Trial, what: str) -> None:
    """A Finding where the answer wrote into what it was given: `what`, in words."""
    for rank, report in enumerate(trial.reports):
        if report["changed"]:
            raise general.SAYS("input changed", what=what, rank=rank, when=trial.when)


def another_step(trial: Trial, rank: int, step: int, name: str = "another second step") -> Finding:
    """The Finding of an answer that is right in the first step alone."""
    about = {"step": step + 1, "rank": rank, "when": trial.when}
    return Finding(name, general.SAYS.of("another second step", **about)[1])


def came_back(report: Mapping) -> str:
    """What an answer returned, in words."""
    if report["shape"] is None:
        return f"a {report['kind']}"
    return f"a tensor of shape {report['shape']} and dtype {report['dtype']}"


def counted(ops: Mapping[str, int]) -> str:
    """How many messages of each kind, in words."""
    return " and ".join(f"{count} {op}" for op, count in ops.items()) or "nothing"


def fresh_seed() -> int:
    """A seed for the numbers of one check: no answer can know them."""
    return int.from_bytes(os.urandom(3), "big")
