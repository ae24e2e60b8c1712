"""Answers to the exercises as data: right ones, and wrong ones with the name each is refused by.

A file for each lesson has RIGHT and WRONG. An answer is the text of a cell, a list of cells, or the
numbers of a question; `tests/course_lessons/test_checks.py` gives each to its check.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from course_classroom.ranks.carried import defined_names

Given = "str | list[str] | dict"


def lessons() -> list[ModuleType]:
    """The files with answers, in the order of the lessons."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("lesson_"))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]


def changed(source: str, *pairs: tuple[str, str]) -> str:
    """A right answer with one mistake in it, which may take several changes."""
    for old, new in pairs:
        if source.count(old) != 1:
            raise ValueError(f"{source.count(old)} times in the answer, and not once: {old!r}")
        source = source.replace(old, new)
    return source


def checked(desk, exercise: str, given: Given):
    """The verdict on an answer, as a notebook with these cells would have it."""
    if isinstance(given, dict):
        return desk.check(exercise, {}, {exercise: given})
    sources: dict[str, str] = {}
    for cell in [given] if isinstance(given, str) else given:
        sources.update(dict.fromkeys(defined_names(cell), cell))
    return desk.check(exercise, sources)
