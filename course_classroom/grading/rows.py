"""The results of grading: one row per student and exercise, as a table, CSV and JSON.

Names are untrusted text, so none may become a spreadsheet formula or a terminal command.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from course_classroom.grading.discover import Submission
from course_classroom.grading.handouts import Cell, Handout
from course_lib.files import write_whole

LONGEST = 400  # characters of a note
# Outcomes that were not judged: the exit code reports them, and an instructor looks at them.
NOT_GRADED = ("not a notebook", "empty", "wrong lesson", "not started", "stopped", "by hand")
NOT_GRADED += ("not judged",)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Row:
    student: str
    lesson: str
    exercise: str
    points: float
    max: float
    outcome: str
    misconception: str
    note: str
    file: str

    @property
    def graded(self) -> bool:
        return self.outcome not in NOT_GRADED


HEADER = [field.name for field in fields(Row)]


class Refused(Exception):
    """An error that states why the results cannot be written to the requested place."""


def rows_from(
    submission: Submission,
    events: Sequence[dict],
    handouts: Sequence[Handout],
    *,
    confined: bool = True,
) -> list[Row]:
    """Return the rows of one submission from the events of its worker and its supervisor."""
    kinds = ("unreadable", "read", "verdict", "end")
    told = {kind: [e for e in events if e.get("event") == kind] for kind in kinds}
    if submission.trouble:
        outcome, _, text = submission.trouble.partition(": ")
        return _bare(submission, handouts, outcome, text)
    if told["unreadable"]:
        first = told["unreadable"][0]
        return _bare(submission, handouts, str(first["outcome"]), str(first["text"]))
    end = told["end"][-1] if told["end"] else {}
    outcome, text = _how_it_ended(end)
    handout = _handout(told["read"], handouts)
    if handout is None:
        return _bare(submission, handouts, outcome, text)
    verdicts: dict[str, dict] = {}
    for one in told["verdict"]:
        verdicts.setdefault(str(one.get("cell")), one)  # the first counts
    shared = [str(note) for note in told["read"][0].get("notes", [])]
    if submission.lesson and submission.lesson in {h.lesson for h in handouts} - {handout.lesson}:
        shared.append(f"it was in the folder of {submission.lesson}")
    if end.get("left") and not end.get("why") and not end.get("code"):
        shared.append(f"{end['left']} leftover process(es) were ended")
    if end.get("refused"):
        shared.append(f"{end['refused']} line(s) among its verdicts were forged and were ignored")
    if not confined:
        shared.append("not confined")
    rows = []
    for cell in handout.checks:
        verdict = verdicts.get(cell.id) or {"outcome": outcome, "text": text}
        rows.append(_row(submission, handout, cell, verdict, shared))
    return rows


def _handout(read: Sequence[dict], handouts: Sequence[Handout]) -> Handout | None:
    if not read:
        return None
    lesson, name = read[0].get("lesson"), read[0].get("name")
    return next((h for h in handouts if (h.lesson, h.name) == (lesson, name)), None)


def _how_it_ended(end: dict) -> tuple[str, str]:
    if end.get("why"):
        return str(end["why"]), str(end.get("told", ""))
    if not end or end.get("code", 0) < 0:
        return "ended its judge", "the process that judges it was killed by the submission"
    last = (str(end.get("log", "")).strip().splitlines() or ["it printed nothing"])[-1]
    return "not started", f"the judging process failed: {last}"


def _row(submission, handout: Handout, cell: Cell, verdict: dict, shared: list[str]) -> Row:
    points = verdict.get("points", 0)
    notes = [*shared, *map(str, verdict.get("notes", []))]
    if not isinstance(points, (int, float)) or not 0 <= points <= cell.points:
        notes.append(f"it claimed {points!r} of {cell.points:g} points; the claim was ignored")
        points = 0
    text = "" if verdict["outcome"] == "right" else str(verdict.get("text", ""))
    return Row(
        student=plain(submission.student),
        lesson=handout.lesson,
        exercise=cell.exercise or cell.id,
        points=points,
        max=cell.points,
        outcome=plain(str(verdict["outcome"])),
        misconception=plain(str(verdict.get("name", ""))),
        note=_note([*notes, text]),
        file=plain(submission.shown),
    )


def _bare(
    submission: Submission, handouts: Sequence[Handout], outcome: str, text: str
) -> list[Row]:
    """Return rows without a verdict; the exercise is taken from the file's name if possible."""
    name = submission.path.stem.casefold()
    named = [h for h in handouts if h.name.casefold() == name][:1]
    cells = [(h.lesson, c.exercise or c.id, 0, c.points) for h in named for c in h.checks]
    student, shown = plain(submission.student), plain(submission.shown)
    rest = plain(outcome), "", _note([text]), shown
    return [Row(student, *cell, *rest) for cell in cells or [("", "", 0, 0)]]


def _note(parts: Sequence[str]) -> str:
    return plain("; ".join(filter(None, parts)))[:LONGEST]


def plain(text: str) -> str:
    """Return text on one line, without characters that control a terminal."""
    joined = " / ".join(line.strip() for line in text.splitlines() if line.strip())
    return "".join(c if c.isprintable() else "?" for c in joined)


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the complete file or nothing; see `check_target` for files that may be replaced."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(HEADER)
    for row in rows:
        out.writerow([_safe(value) for value in asdict(row).values()])
    try:
        write_whole(path, text.getvalue())
    except OSError as error:
        raise Refused(
            f"{path} was not written ({error.strerror}), and any existing file is unchanged. Free "
            "some space or name another file with --csv"
        ) from None


def check_target(path: Path) -> None:
    """Raise Refused before grading if the place is not writable or has a foreign file."""
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise Refused(f"{path.parent} is not a writable folder; name another place with --csv")
    if not path.exists():
        return
    try:
        with open(path, encoding="utf-8", newline="") as file:
            ours = next(csv.reader(file), []) == HEADER
    except (OSError, UnicodeDecodeError, csv.Error):
        ours = False
    if not ours:
        raise Refused(
            f"{path} exists but contains no grades of `course grade`; move it away, or name "
            "another file with --csv"
        )


def _safe(value: object) -> str:
    """Return a value as text that no spreadsheet interprets as a formula."""
    if isinstance(value, float | int):
        return f"{value:g}"
    return f"'{value}" if str(value).startswith(_FORMULA) else str(value)


def print_table(rows: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    for name, most in (("student", 20), ("exercise", 24), ("points", None), ("outcome", 28)):
        table.add_column(name, overflow="fold", max_width=most)
    table.add_column("note", overflow="fold", ratio=1)
    for row in rows:
        outcome = f"{row.outcome}: {row.misconception}" if row.misconception else row.outcome
        points = f"{row.points:g} of {row.max:g}" if row.max else ""
        note = row.note if len(row.note) <= 80 else f"{row.note[:80]} …"
        cells = (row.student, row.exercise or row.file, points, outcome, note)
        table.add_row(*map(Text, cells))  # Text objects, because names must never become markup
    Console().print(table)


def with_missing(rows: Sequence[Row], wanted: Sequence[Handout]) -> list[Row]:
    """Return the rows, plus a row for each exercise of `wanted` that a student did not hand in."""
    out = list(rows)
    students = {}
    for row in rows:
        students.setdefault(row.student, set()).add(row.exercise)
    for student, there in students.items():
        place = max(i for i, row in enumerate(out) if row.student == student) + 1
        lacking = [(h, c) for h in wanted for c in h.checks if (c.exercise or c.id) not in there]
        out[place:place] = [
            Row(student, h.lesson, c.exercise or c.id, 0, c.points, "not handed in", "", "", "")
            for h, c in lacking
        ]
    return out
