"""Thought questions about numbers: right answers, the numbers of wrong ideas, and units.

The right numbers come from formulas, never from a table of results, and are never shown. Lesson 01
asks the first question.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import NamedTuple, Protocol

from course_classroom.judge.finding import Finding
from course_classroom.judge.words import Words
from course_classroom.ranks.agreement import listed

CLOSE = 0.005  # relative; three digits are enough
_FACTORS = {1e3: "a thousand", 1e6: "a million", 1e9: "a billion", 8.0: "eight"}


@dataclass(frozen=True)
class Thought:
    """A question answered by a dictionary of numbers; `judge` raises a Finding or returns."""

    name: str  # the variable that the learner fills in
    title: str
    points: int
    fields: tuple[Hashable, ...]
    judge: Callable[[Mapping[Hashable, float]], None]
    when_right: str
    hints: tuple[str, ...]


class Mistake(NamedTuple):
    """A wrong idea: its name, its text, and its numbers."""

    name: str
    text: str
    values: Mapping[Hashable, float]


def blanks(thought: Thought, given: object) -> list[Hashable]:
    """Return the empty fields, or all fields if there is no dictionary."""
    if given is None or given is ...:
        return list(thought.fields)
    if not isinstance(given, Mapping):
        raise Finding(
            "not a dictionary",
            f"`{thought.name}` is a {type(given).__name__} now. Keep the dictionary of the cell "
            "and replace each `...` by a number.",
        )
    return [f for f in thought.fields if f not in given or given[f] is ... or given[f] is None]


def as_numbers(thought: Thought, given: Mapping) -> dict[Hashable, float]:
    """Return the learner's numbers of any type as floats."""
    return {name: _as_number(f"{thought.name}[{name!r}]", given[name]) for name in thought.fields}


def _as_number(where: str, given: object) -> float:
    number = math.nan
    with contextlib.suppress(Exception):  # text, no data, or an error of the object
        number = as_float(given)
    if math.isfinite(number):
        return number
    raise Finding(
        "not a number",
        f"`{where}` is {_shown(given)}, but it must be a number without its unit{_advice(given)}.",
    )


def as_float(given: object) -> float:
    """Return a real number, or a one-element tensor or array, as a float, or raise a TypeError."""
    value = given.item() if isinstance(getattr(given, "ndim", None), int) else given
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
        raise TypeError(f"{type(value).__name__} is not a real number")
    return float(value)


def _advice(given: object) -> str:
    """Return a suggested correction, or an empty string if there is none."""
    if isinstance(given, str):
        found = re.findall(r"[-+]?\d+(?:\.\d+)?", given)
        return f" and without quotes: write {found[0]}" if len(found) == 1 else ""
    if isinstance(given, list | tuple | set):
        return ": one number, not a collection of numbers"
    return ""


class Model(Protocol):
    """A counting model, which is a dataclass whose fields are the counts."""

    def answers(self) -> dict: ...


def counted(says: Words, right: Model, ideas: Mapping[str, Mapping]) -> tuple[Mistake, ...]:
    """Return wrong ideas that change counts of one model: each has its entry in `says` and the
    numbers that differ. Ideas that change few numbers come first because they are more specific."""
    known, found = right.answers(), []
    for entry, counts in ideas.items():
        theirs = replace(right, **counts).answers()
        differing = {field: value for field, value in theirs.items() if value != known[field]}
        found.append(Mistake(*says.of(entry), differing))
    return tuple(sorted(found, key=lambda mistake: len(mistake.values)))


def named(
    says: Words, ideas: Mapping[str, Mapping] | Iterable[tuple[str, Mapping]], **about: object
) -> tuple[Mistake, ...]:
    """Return wrong ideas by their entries in `says`, with their numbers."""
    pairs = ideas.items() if isinstance(ideas, Mapping) else ideas
    return tuple(Mistake(*says.of(entry, **about), values) for entry, values in pairs)


def held_against(
    right: Mapping[Hashable, float] | Model, mistakes: tuple[Mistake, ...], **how: bool
) -> Callable[[Mapping[Hashable, float]], None]:
    """Return the `judge` function of a question that only needs `compare`."""
    known = right if isinstance(right, Mapping) else right.answers()
    return lambda given: compare(given, known, mistakes, **how)


def compare(
    given: Mapping[Hashable, float],
    right: Mapping[Hashable, float],
    mistakes: tuple[Mistake, ...],
    apart: bool = False,
    units: bool = True,
) -> None:
    """Raise the Finding that best explains the difference from `right`.

    If `apart`, each field is a separate question, so several mistakes are possible at once. Without
    `units`, a factor of eight or a thousand has no special meaning.
    """
    wrong = [name for name in right if not close(given[name], right[name])]
    if not wrong:
        return
    rest = "" if len(wrong) == len(right) else " The other values are correct."
    told = _listed(wrong)
    explained = [[name for name in wrong if explains(m, name, given[name])] for m in mistakes]
    for mistake, about in zip(mistakes, explained, strict=True):
        if about == wrong:
            more = f" This concerns {told}.{rest}" if rest else ""
            raise Finding(mistake.name, mistake.text + more)
    for factor, word in _FACTORS.items() if units else ():
        for scale, larger in ((factor, "large"), (1 / factor, "small")):
            if all(close(given[name], right[name] * scale) for name in wrong):
                what = f"{told} {'are' if wrong[1:] else 'is'} too {larger} by {word}"
                raise Finding("unit", f"{what}. Look at the unit asked for.{rest}")
    if apart:
        _refuse_each(given, wrong, mistakes)
    for mistake, about in zip(mistakes, explained, strict=True):
        if len(about) > max(1, len(wrong) / 2):
            more = _listed([name for name in wrong if name not in about])
            text = f"{mistake.text} This concerns {_listed(about)}, but {more} is wrong too."
            raise Finding(mistake.name, text)
    raise Finding("wrong number", f"Your value of {told} is wrong.{rest}")


def _refuse_each(given: Mapping, wrong: list[Hashable], mistakes: tuple[Mistake, ...]) -> None:
    """Raise a Finding with the idea for each wrong field, if at least one is explained.

    If one idea explains several fields, its sentence appears once for all these fields.
    """
    named: set[str] = set()
    about: dict[str, list[Hashable]] = {}  # text → fields that it explains
    for name in wrong:
        idea = next((m for m in mistakes if explains(m, name, given[name])), None)
        named |= {idea.name} if idea else set()
        about.setdefault(idea.text if idea else "wrong.", []).append(name)
    if not named:
        return
    text = "\n".join(f"{_listed(names)}: {said}" for said, names in about.items())
    raise Finding(named.pop() if len(named) == 1 else "several ideas", text)


def _listed(names: list[Hashable]) -> str:
    return listed(list(map(repr, names)))


def explains(mistake: Mistake, name: Hashable, value: float) -> bool:
    """Return True if a mistake explains a field's value; a mistake need not cover every field."""
    return name in mistake.values and close(value, mistake.values[name])


def close(a: float, b: float) -> bool:
    """Return True if two numbers agree to three digits; nothing is close to a NaN."""
    return math.isclose(a, b, rel_tol=CLOSE, abs_tol=1e-12)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # any error of a learner's object in repr
        text = ""
    return text if 0 < len(text) <= 40 else f"of type {type(value).__name__}"
