"""What every check has in common: three outcomes, a finding with a name, hints in steps.

A lesson's file adds its exercises; each says in one function how an answer is tried and judged. The
frame never prints an answer. Lesson 01 holds the first exercise.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from course_lib.classroom.checks import answer

if TYPE_CHECKING:
    from course_lib.classroom.checks.judge import Judge

NOT_ATTEMPTED, WRONG, RIGHT = "not attempted", "wrong", "right"
_MARKS = {NOT_ATTEMPTED: "○", WRONG: "✗", RIGHT: "✓"}  # never by colour alone


class Finding(Exception):
    """What is wrong with an answer: the misconception's name, and words for the learner."""

    def __init__(self, name: str, text: str):
        super().__init__(text)
        self.name, self.text = name, text


@dataclass(frozen=True)
class Exercise:
    """One exercise; `judge` raises a Finding or returns."""

    name: str  # the function that the learner writes
    title: str
    points: int
    judge: Callable[[answer.Answer, Judge], None]
    when_right: str
    hints: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """How a check ended."""

    exercise: str
    outcome: str  # NOT_ATTEMPTED, WRONG or RIGHT
    name: str  # the misconception, where one was recognised
    text: str
    points: int
    of: int

    def __str__(self) -> str:
        head = f"{_MARKS[self.outcome]} {self.exercise}: {self.outcome}"
        return f"{head} ({self.points} of {self.of} points)\n{self.text}"

    def __repr__(self) -> str:
        # A grader that runs the notebook reads the points from here; people see the card.
        return str(self.points)

    def _repr_html_(self) -> str:
        head, text = (escape(part) for part in str(self).split("\n", 1))
        line = {NOT_ATTEMPTED: "dotted", WRONG: "dashed", RIGHT: "solid"}[self.outcome]
        return (
            f'<div style="border-left: 4px {line} #767676; padding: 0.3em 0.8em">'
            f"<strong>{head}</strong>"
            f'<div style="white-space: pre-wrap">{text}</div></div>'
        )


def exercises() -> dict[str, Exercise]:
    """Every exercise of the course by name, from the files `lesson_*.py` beside this one."""
    package = importlib.import_module("course_lib.classroom.checks")
    found: dict[str, Exercise] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("lesson_"):
            lesson = importlib.import_module(f"{package.__name__}.{module.name}")
            found.update({exercise.name: exercise for exercise in lesson.EXERCISES})
    return found


def find(name: str) -> Exercise:
    known = exercises()
    if name not in known:
        raise ValueError(f"there is no exercise {name!r}; the exercises are {', '.join(known)}")
    return known[name]


def judge(exercise: Exercise, sources: Mapping[str, str], judge: Judge) -> Verdict:
    """Try an answer. Whatever it does, this returns a verdict and leaves a judge that works."""

    def verdict(outcome: str, text: str, name: str = "", points: int = 0) -> Verdict:
        return Verdict(exercise.name, outcome, name, text, points, exercise.points)

    try:
        found = answer.read(exercise.name, sources)
    except SyntaxError as error:
        where = f" in line {error.lineno + 1}" if error.lineno else ""
        return verdict(WRONG, f"Python cannot read the cell{where}: {error.msg}.", "syntax")
    if not found.attempted:
        missing = f"No %%ranks cell has defined {exercise.name} yet: run the cell that holds it."
        return verdict(NOT_ATTEMPTED, _BLANK if found.cells else missing)
    try:
        exercise.judge(found, judge)
    except Finding as finding:
        return verdict(WRONG, finding.text, finding.name)
    return verdict(RIGHT, exercise.when_right, points=exercise.points)


_BLANK = "Its body is still empty. Write it, run its cell, then run this one again."
