"""Checks of a learner's own answers from the shell, as saved in the notebooks.

They use grading's reader and judge without the sandbox, because the code is the learner's own.
Lesson 00 mentions them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_classroom.grading import handouts
from course_classroom.grading.reading import Unreadable, answers, read
from course_classroom.grading.worker import given_numbers, judged
from course_classroom.progress import log as progress

NOT_OPENED = "not opened"


class Unknown(Exception):
    """An error for a request that matches no lesson, exercise or notebook."""


@dataclass(frozen=True)
class Checked:
    """The result of one exercise, or the reason why there is nothing to check."""

    lesson: str
    exercise: str
    outcome: str
    misconception: str
    points: int
    of: int
    text: str
    notebook: str
    not_recorded: str = ""


def find(what: str, root: Path, work: Path) -> list[Path]:
    """Return the notebooks for `what` (a path, lesson or exercise), or raise Unknown."""
    if what.endswith(".ipynb"):
        if not Path(what).is_file():
            raise Unknown(f"there is no notebook {what}")
        return [Path(what)]
    given = handouts.from_exercises(root)
    chosen = handouts.of_lesson(given, what)
    chosen = chosen or [h for h in given if what in {h.name, *(c.exercise for c in h.checks)}]
    if not chosen:
        lessons = ", ".join(sorted({h.lesson for h in given}))
        names = ", ".join(sorted(c.exercise for h in given for c in h.checks))
        raise Unknown(f"{what} is neither a lesson ({lessons}) nor an exercise ({names})")
    return [work / "exercises" / h.lesson / f"{h.name}.ipynb" for h in chosen]


def check(notebooks: Sequence[Path], root: Path) -> Iterator[Checked]:
    """Judge every answer in the notebooks, record it in the progress, and yield the result."""
    from course_classroom.judge.judge import Judge

    given, judge, here = handouts.from_exercises(root), Judge(), Path.cwd()
    try:
        for path in map(Path.resolve, notebooks):
            judge.stop()  # ranks run in the folder of the notebook, as in JupyterLab
            os.chdir(path.parent if path.parent.is_dir() else here)
            yield from _checked(path, given, judge)
    finally:
        judge.stop()
        os.chdir(here)


def _checked(path: Path, given: Sequence[handouts.Handout], judge) -> Iterator[Checked]:
    from course_classroom.judge import frame

    def not_read(outcome: str, text: str) -> Checked:
        return Checked(path.parent.name, path.stem, outcome, "", 0, 0, text, str(path))

    if not path.is_file():
        text = f"{path} does not exist yet: `make lab` creates it. Save your notebook, then check."
        yield not_read(NOT_OPENED, text)
        return
    try:
        reading = read(path, given)
    except Unreadable as why:
        yield not_read(why.outcome, f"{path}: {why.outcome}, {why.text}.")
        return
    book = progress.here(path.parent)
    for cell in reading.handout.checks:
        if not cell.exercise:
            continue
        sources = answers(reading, cell)
        value, note = given_numbers(reading, cell, path.parent)
        verdict = judged(cell, sources, (value, note), judge)
        tried = verdict.outcome != frame.NOT_JUDGED
        yield Checked(
            reading.handout.lesson,
            verdict.exercise,
            verdict.outcome,
            verdict.name,
            verdict.points,
            verdict.of,
            "\n".join(filter(None, [str(verdict), "" if value is None else note])),
            str(path),
            book.record("check", **verdict.as_fact()) if book and tried else "",
        )
