"""A learner's standing: each lesson's exercises with their results from the progress file.

`my_progress()` in a notebook and `course status` in a terminal show it. Lesson 00 too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from course_classroom.progress.log import MARKS, NOT_ATTEMPTED, NOT_JUDGED, Log
from course_classroom.ranks.agreement import counted

_RECORDED = set(MARKS) - {NOT_JUDGED}  # outcomes that a progress file may contain


class Exercise(Protocol):
    """The attributes of an exercise that a table needs."""

    name: str
    points: int


class Row(NamedTuple):
    lesson: str
    exercise: str
    outcome: str
    points: int
    of: int
    hints: int
    since: str  # time when that was first reached, in ISO form; empty if never
    last: str  # time of the last check; empty if never
    last_outcome: str  # outcome of the last check

    def as_text(self, outcome: str = "") -> str:
        """Describe the exercise in one line, with the time of the last check, and its outcome if it
        was not the best."""
        hints = f", {counted(self.hints, 'hint')}" if self.hints else ""
        last = f", last checked {when(self.last)}" if self.last else ""
        if self.last and self.outcome != self.last_outcome:
            last = f", {self.outcome} at {when(self.since)}, "
            last += f"{self.last_outcome} when last checked at {when(self.last)}"
        points = f"{self.points} of {self.of}"
        return f"  {MARKS[self.outcome]} {self.exercise:<22} {outcome}{points}{hints}{last}"


def standing(log: Log, lessons: Mapping[str, Iterable[Exercise]]) -> list[Row]:
    """Return a row for each exercise, in the order of the course."""
    return [_row(log, lesson, one) for lesson, found in lessons.items() for one in found]


def _row(log: Log, lesson: str, exercise: Exercise) -> Row:
    best = log.best(exercise.name) or {}
    checks = log.of("check", exercise=exercise.name)
    outcome = best.get("outcome", NOT_ATTEMPTED)
    known = outcome in _RECORDED
    last = checks[-1] if checks else {}
    return Row(
        lesson,
        exercise.name,
        outcome if known else NOT_ATTEMPTED,
        max(0, min(best.get("points", 0), exercise.points)) if known else 0,
        exercise.points,
        max((hint.get("number", 0) for hint in log.of("hint", exercise=exercise.name)), default=0),
        best.get("at", ""),
        last.get("at", ""),
        last.get("outcome", NOT_ATTEMPTED) if last.get("outcome") in _RECORDED else NOT_ATTEMPTED,
    )


def predictions(log: Log) -> tuple[int, int]:
    """Count the predicted questions, and the predicted questions that were also measured."""
    asked = {e.get("question") for e in log.of("prediction")}
    return len(asked), len(asked & {e.get("question") for e in log.of("measured")})


def when(at: str) -> str:
    return at[:16].replace("T", " ")


def as_text(rows: list[Row], log: Log, shown: Collection[str] | None = None) -> str:
    """Return the progress as lines of text for notebooks and terminals.

    The lessons that are not `shown` share one line with their points.
    """
    lines = []
    others = [row for row in rows if shown is not None and row.lesson not in shown]
    for lesson in dict.fromkeys(row.lesson for row in rows if row not in others):
        mine = [row for row in rows if row.lesson == lesson]
        lines.append(f"Lesson {lesson}: {sum(r.points for r in mine)} of {sum(r.of for r in mine)}")
        lines += [row.as_text() for row in mine]
    if others:
        which = "The other lessons" if lines else "All lessons"
        points = f"{sum(r.points for r in others)} of {sum(r.of for r in others)}"
        lines.append(f"{which}: {points}. `my_progress(everything=True)` lists their exercises.")
    made, compared = predictions(log)
    lines.append(f"Predictions: {made} recorded, {compared} of them compared with a measurement")
    if log.damaged:
        numbers = ", ".join(map(str, log.damaged))
        lines.append(f"Line {numbers} of the progress file cannot be read; the others count.")
    return "\n".join(lines)
