"""How far a learner has come: the exercises of each lesson beside what the progress file says.

`my_progress()` in a notebook and `course status` in a terminal show the same. Lesson 00 meets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from course_lib.classroom.checks.frame import MARKS, NOT_ATTEMPTED, Exercise
from course_lib.classroom.checks.thought import Thought
from course_lib.classroom.progress import Log


class Row(NamedTuple):
    """Where one exercise stands."""

    lesson: str
    exercise: str
    outcome: str
    points: int
    of: int
    hints: int
    last: str  # when it was last checked, in ISO form; empty if never


def standing(log: Log, lessons: Mapping[str, Iterable[Exercise | Thought]]) -> list[Row]:
    """A row for each exercise, in the order of the course."""
    return [_row(log, lesson, one) for lesson, found in lessons.items() for one in found]


def _row(log: Log, lesson: str, exercise: Exercise | Thought) -> Row:
    best = log.best(exercise.name) or {}
    checks = log.of("check", exercise=exercise.name)
    outcome = best.get("outcome", NOT_ATTEMPTED)
    known = outcome in MARKS
    return Row(
        lesson,
        exercise.name,
        outcome if known else NOT_ATTEMPTED,
        max(0, min(best.get("points", 0), exercise.points)) if known else 0,
        exercise.points,
        max(
            (event.get("number", 0) for event in log.of("hint", exercise=exercise.name)), default=0
        ),
        checks[-1].get("at", "") if checks else "",
    )


def predictions(log: Log) -> tuple[int, int]:
    """How many questions were predicted, and how many of those were then measured."""
    asked = {e.get("question") for e in log.of("prediction")}
    return len(asked), len(asked & {e.get("question") for e in log.of("measured")})


def as_text(rows: list[Row], log: Log) -> str:
    """The standing in lines that read the same in a notebook and in a terminal."""
    lines = []
    for lesson in dict.fromkeys(row.lesson for row in rows):
        mine = [row for row in rows if row.lesson == lesson]
        lines.append(f"Lesson {lesson}: {sum(r.points for r in mine)} of {sum(r.of for r in mine)}")
        for row in mine:
            hints = f", {row.hints} hint{'s' * (row.hints > 1)}" if row.hints else ""
            last = f", last checked {row.last[:16].replace('T', ' ')}" if row.last else ""
            points = f"{row.points} of {row.of}"
            lines.append(f"  {MARKS[row.outcome]} {row.exercise:<22} {points}{hints}{last}")
    made, compared = predictions(log)
    lines.append(
        f"Predictions: {made} written down, {compared} of them compared with a measurement"
    )
    if log.damaged:
        numbers = ", ".join(map(str, log.damaged))
        lines.append(f"Line {numbers} of the progress file cannot be read; the rest counts.")
    return "\n".join(lines)
