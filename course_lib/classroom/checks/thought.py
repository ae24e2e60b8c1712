"""Thought questions with a number: what is right, what each wrong idea would give, what a unit is.

The right numbers come from formulas, never from a table of results, and are never shown. Lesson 01
asks the first.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.classroom.checks.finding import Finding

CLOSE = 0.005  # relative: three digits are enough
_FACTORS = {1e3: "a thousand", 1e6: "a million", 1e9: "a thousand million", 8.0: "eight"}


@dataclass(frozen=True)
class Thought:
    """A question answered by a dictionary of numbers; `judge` raises a Finding or returns."""

    name: str  # the variable that the learner fills
    title: str
    points: int
    fields: tuple[Hashable, ...]
    judge: Callable[[Mapping[Hashable, float]], None]
    when_right: str
    hints: tuple[str, ...]


class Mistake(NamedTuple):
    """A wrong idea: its name, what to say to it, and the numbers that it leads to."""

    name: str
    text: str
    values: Mapping[Hashable, float]


def blanks(thought: Thought, given: object) -> list[Hashable]:
    """The fields that hold nothing yet; all of them where there is no dictionary at all."""
    if given is None or given is ...:
        return list(thought.fields)
    if not isinstance(given, Mapping):
        raise Finding(
            "not a dictionary",
            f"`{thought.name}` is a {type(given).__name__} now; keep the dictionary of the cell "
            f"and write a number in the place of each `...`.",
        )
    return [f for f in thought.fields if f not in given or given[f] is ... or given[f] is None]


def as_numbers(thought: Thought, given: Mapping) -> dict[Hashable, float]:
    """The learner's numbers as floats, whatever type of number they are."""
    found = {}
    for name in thought.fields:
        value = given[name]
        single = getattr(value, "item", None)  # a tensor or array with one number in it
        if callable(single) and getattr(value, "ndim", 0) == 0:
            value = single()
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise Finding(
                "not a number",
                f"`{thought.name}[{name!r}]` is {_shown(value)}, and a number is wanted, without "
                "its unit.",
            )
        found[name] = float(value)
    return found


def compare(
    given: Mapping[Hashable, float], right: Mapping[Hashable, float], mistakes: tuple[Mistake, ...]
) -> None:
    """Raise the Finding that explains best what differs from `right`."""
    wrong = [name for name in right if not close(given[name], right[name])]
    if not wrong:
        return
    for mistake in mistakes:
        if all(close(given[name], mistake.values[name]) for name in wrong):
            raise Finding(mistake.name, mistake.text)
    for factor, word in _FACTORS.items():
        for scale, larger in ((factor, "large"), (1 / factor, "small")):
            if all(close(given[name], right[name] * scale) for name in wrong):
                raise Finding("unit", f"Too {larger} by {word}: look at the unit asked for.")
    told = " and ".join(repr(name) for name in wrong)
    rest = "" if len(wrong) == len(right) else " The rest is right."
    raise Finding("wrong number", f"Not right: what you have for {told}.{rest}")


def close(a: float, b: float) -> bool:
    """Whether two numbers are the same to three digits; nothing is close to a NaN."""
    return math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-12)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"
