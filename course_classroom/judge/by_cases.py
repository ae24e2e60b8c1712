"""Exercises on random cases: the returned dict is judged key by key.

An exercise declares its cases, the right values and the values of each wrong idea. This module
contains the trial and the order of checks. From lesson 13 on.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from random import Random
from typing import NamedTuple

from course_classroom.judge import bench
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.judge import Judge
from course_classroom.judge.looking import THREE, fresh_seed
from course_lib.collectives.call import Group

CLOSE, DRAWS, DEEP = 1e-6, 400, 3  # relative tolerance, sets of cases tried, nested lists
ROUND, A_TEXT = 0.005, "a str"  # relative, nearer than any idea, and a placeholder for a string
Case = Mapping[str, object]  # or the object from which an exercise's `arguments` are made
Judged = Callable[[Sequence[Case], Sequence[object]], None]


class Idea(NamedTuple):
    """A wrong idea about one key: its name, its text, and its value for a case."""

    key: str
    name: str
    text: str
    gives: Callable[[Case], object]


class AnyOf(NamedTuple):
    """Several values that are equally consistent with an idea."""

    values: Sequence[object]


def about(case: Case) -> str:
    """Describe the case's numbers, with a line for each of its parts; its strings are omitted."""
    numbers = {name: value for name, value in case.items() if isinstance(value, Real)}
    told = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    for name, parts in case.items():
        if isinstance(parts, list) and all(isinstance(part, Mapping) for part in parts):
            each = (", ".join(f"{key} {_shown(x)}" for key, x in p.items()) for p in parts)
            told += "".join(f"\n{name}[{k}]: {text}" for k, text in enumerate(each))
    return told


def _misread(key: str, case: Case, wanted: object, head: str, tail: str) -> Finding:
    return Finding(f"{key} wrong", head + tail)


@dataclass(frozen=True)
class Cases:
    """An exercise's cases: `make(random, k)` draws case k of `count`, `right` gives its values.

    `judged` has a function for each key with more than one right answer: the function raises a
    Finding or returns. `unnamed` makes the Finding for a wrong value that no idea explains.
    """

    keys: tuple[str, ...]
    count: int
    make: Callable[[Random, int], Case]
    right: Callable[[Case], Mapping[str, object]]
    ideas: tuple[Idea, ...]
    judged: Mapping[str, Judged] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)  # all allowed values of a key
    arguments: Callable[[Case], tuple] = lambda case: (case,)  # arguments of the answer
    about: Callable[[Case], str] = about
    unnamed: Callable[[str, Case, object, str, str], Finding] = _misread

    def drawn(self, seed: int) -> list[Case]:
        """Draw cases in which no idea is right, and any two ideas of a key differ unless they have
        the same text."""
        r = Random(seed)
        for _ in range(DRAWS):
            cases = [self.make(r, k) for k in range(self.count)]
            if self._tell_apart(cases):
                return cases
        raise RuntimeError(f"no cases of seed {seed} distinguish all {len(self.ideas)} ideas")

    def _tell_apart(self, cases: Sequence[Case]) -> bool:
        rights = [self.right(case) for case in cases]
        met: dict[str, list[tuple]] = {key: [(None, [r[key] for r in rights])] for key in self.keys}
        for idea in self.ideas:
            gives = [idea.gives(case) for case in cases]
            others = (other for text, other in met[idea.key] if text != idea.text)
            if any(all(map(same, gives, other)) for other in others):
                return False
            met[idea.key].append((idea.text, gives))
        return True


def judge_cases(answer: Answer, judge: Judge, cases: Cases, module: str) -> None:
    """Try the answer on the CASES of `module`, and examine its results."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    drawn = cases.drawn(seed)
    when = f"in {len(drawn)} randomly chosen cases"
    for report in judge.trial(answer, run, module, seed, members=THREE, when=when):
        look(cases, drawn, report["cases"])


def run(function: Callable, group: Group, module: str, seed: int) -> dict:
    """Run the function on each case on the judge's ranks; return the results as data."""
    cases: Cases = importlib.import_module(module).CASES
    return {"cases": [_tried(function, case, cases) for case in cases.drawn(seed)]}


def look(cases: Cases, drawn: Sequence[Case], reports: Sequence[Mapping]) -> None:
    """Raise the Finding that best explains an error, in the result's form or in its first key."""
    for case, seen in zip(drawn, reports, strict=True):
        kind, keys, told = seen["kind"], ", ".join(cases.keys), cases.about(case)
        if seen["error"]:
            raise Finding("stopped by an error", f"It ended with {seen['error']}; {told}")
        if kind == "NoneType":
            text = "Your function returned None instead of a dictionary. Did you forget `return`?"
            raise Finding("nothing returned", text)
        if kind != "dict":
            text = f"Your function returned a {kind} instead of a dict with {keys}."
            raise Finding("not a dictionary", text)
        if seen["lost"]:
            raise Finding("a key missing", f"The result lacks {seen['lost']}: {told}")
        if seen["changed"]:
            text = "Your function changed its arguments. Work on a copy."
            raise Finding("input changed", text)
    for key in cases.keys:
        values = [seen["values"][key] for seen in reports]
        if key in cases.judged:
            cases.judged[key](drawn, values)
        else:
            _look_at(cases, key, drawn, values)


def _look_at(cases: Cases, key: str, drawn: Sequence[Case], seen: Sequence[object]) -> None:
    wanted = [cases.right(case)[key] for case in drawn]
    wrong = [k for k in range(len(seen)) if not same(seen[k], wanted[k])]
    if not wrong:
        return
    first = wrong[0]
    head = f"`{key}` is wrong in {len(wrong)} of {len(seen)} randomly chosen cases. "
    tail = f"Your value is {_shown(seen[first])}; {cases.about(drawn[first])}"
    for idea in cases.ideas:
        if idea.key == key and explains(idea, seen, drawn):
            raise Finding(idea.name, f"{head}{idea.text} {tail}")
    words = cases.texts.get(key)
    other = [seen[k] for k in wrong if words and seen[k] not in words]
    if other:
        raise Finding("another word", f"{head}{other[0]!r} is not one of {', '.join(words)}.")
    if any(seen[k] == A_TEXT for k in wrong):
        raise Finding("a number as text", f"{head}It is a string instead of a number. {tail}")
    if all(same(seen[k], wanted[k], ROUND) for k in wrong):
        text = "It is close to the correct value. Was it rounded or truncated on the way?"
        raise Finding("rounded on the way", f"{head}{text} {tail}")
    raise cases.unnamed(key, drawn[first], wanted[first], head, tail)


def explains(idea: Idea, seen: Sequence[object], drawn: Sequence[Case]) -> bool:
    """Return True if an idea gives the observed value in every case."""
    return all(map(same, seen, map(idea.gives, drawn)))


def same(seen: object, wanted: object, close: float = CLOSE) -> bool:
    """Compare numbers up to rounding and lists item by item; AnyOf equals any of its values."""
    if isinstance(seen, AnyOf):
        return any(same(one, wanted, close) for one in seen.values)
    if isinstance(wanted, AnyOf):
        return any(same(seen, one, close) for one in wanted.values)
    if isinstance(wanted, list | tuple):
        alike = isinstance(seen, list | tuple) and len(seen) == len(wanted)
        return alike and all(same(s, w, close) for s, w in zip(seen, wanted, strict=True))
    if isinstance(wanted, Real) and isinstance(seen, Real):
        return math.isclose(seen, wanted, rel_tol=close)
    return type(seen) is type(wanted) and seen == wanted


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        told = f"({', '.join(map(_shown, value))})"
        return told if len(told) <= 80 else f"{told[:79]}…"
    return f"{value:.6g}" if isinstance(value, Real) else str(value)[:80]


def _tried(function: Callable, case: Case, cases: Cases) -> dict:
    out, error, given = bench.called(function, *cases.arguments(case))
    seen = bench.keyed(out, cases.keys, lambda key, value: _plain(value, key in cases.texts))
    error = f"{type(error).__name__}: {str(error)[:200]}" if error else ""
    return {**seen, "error": error, "changed": given != cases.arguments(case)}


def _plain(value: object, text: bool = False, deep: int = DEEP) -> object:
    """Return a number, None, a list of these, or a string if `text`, as plain data; otherwise
    return the name of the type."""
    if isinstance(value, str) and text:
        return value[:80]
    if isinstance(value, list | tuple) and deep:
        return [_plain(item, deep=deep - 1) for item in value[:4096]]
    number = bench.number(value)
    if number is None:
        return None if value is None else f"a {type(value).__name__}"
    return number if math.isfinite(number) else str(number)
