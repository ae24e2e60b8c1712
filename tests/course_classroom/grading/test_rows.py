"""Rows are safe to open and to print, whole or not there, and never in the place of other files."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from course_classroom.grading import rows
from course_classroom.grading.discover import Submission
from course_classroom.grading.handouts import Cell, Handout
from course_classroom.grading.rows import Row

CHECK = Cell("f-check", "code", 'check("f")', "", True, False, 2.0, "f")
GIVEN = [Handout("00_x", "f", (CHECK,)), Handout("01_y", "g", (CHECK,))]
READ = {"event": "read", "lesson": "00_x", "name": "f", "notes": ["odd"]}


def row(student: str = "anna", note: str = "") -> Row:
    return Row(student, "00_x", "f", 1.5, 2.0, "wrong", "mean", note, f"{student}.ipynb")


def written(found: list[Row], path: Path) -> list[list[str]]:
    rows.write_csv(found, path)
    with open(path, newline="") as file:
        return list(csv.reader(file))


def of(events: list[dict], **more) -> list[Row]:
    one = Submission(**{"student": "anna", "path": Path("a.ipynb"), "shown": "a.ipynb", **more})
    return rows.rows_from(one, events, GIVEN)


def test_a_row_has_its_columns_in_the_file(tmp_path):
    head, first = written([row()], tmp_path / "grades.csv")
    assert head == rows.HEADER
    assert first == ["anna", "00_x", "f", "1.5", "2", "wrong", "mean", "", "anna.ipynb"]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "=HYPERLINK(1)"])
def test_no_name_becomes_a_formula(tmp_path, name):
    for found in written([row(name, note=name)], tmp_path / "grades.csv")[1:]:
        assert found[0] == found[7] == f"'{name}"


def test_text_cannot_steer_a_terminal_or_leave_its_line(capsys):
    text = rows.plain("\x1b[2Jred\n\n  second\x07 line")
    assert text == "?[2Jred / second? line"
    rows.print_table([row("[bold]x[/bold]")])
    assert "[bold]x[/bold]" in capsys.readouterr().out


def test_a_full_disk_leaves_the_old_grades_whole(tmp_path, monkeypatch):
    path = tmp_path / "grades.csv"
    rows.write_csv([row()], path)
    before = path.read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(rows.Refused, match="No space left"):
        rows.write_csv([row(), row("bob")], path)
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["grades.csv"]


def test_only_grades_are_replaced(tmp_path):
    mine, theirs = tmp_path / "grades.csv", tmp_path / "budget.csv"
    rows.write_csv([row()], mine)
    rows.check_target(mine)
    rows.check_target(tmp_path / "new.csv")
    for content in (b"year,money\n", b"\xff\xfe\x00", b""):
        theirs.write_bytes(content)
        with pytest.raises(rows.Refused, match="no grades"):
            rows.check_target(theirs)
    with pytest.raises(rows.Refused, match="is not a writable folder"):
        rows.check_target(tmp_path / "none" / "grades.csv")
    with pytest.raises(rows.Refused, match="no grades"):
        rows.check_target(tmp_path)


def test_a_verdict_becomes_a_row_with_its_notes():
    told = {"event": "verdict", "cell": "f-check", "outcome": "wrong", "name": "sum", "points": 0}
    (found,) = of([READ, told | {"text": "Too much.", "notes": ["and late"]}])
    assert (found.exercise, found.max, found.misconception) == ("f", 2, "sum")
    assert found.note == "odd; and late; Too much."
    assert found.graded


def test_what_was_not_judged_is_left_to_a_person():
    told = {"event": "verdict", "cell": "f-check", "outcome": "not judged", "points": 0}
    (found,) = of([READ, told | {"text": "The machine is busy."}])
    assert (found.outcome, found.points, found.max, found.graded) == ("not judged", 0, 2, False)
    assert "The machine is busy." in found.note


@pytest.mark.parametrize("points", [40, -1, "2", None, float("nan"), float("inf")])
def test_points_that_cannot_be_are_refused(points):
    told = {"event": "verdict", "cell": "f-check", "outcome": "right", "points": points}
    (found,) = of([READ, told])
    assert found.points == 0
    assert "the claim was ignored" in found.note


def test_what_has_no_verdict_says_how_it_ended():
    end = {"event": "end", "why": "out of time", "told": "not ended after 60 s", "code": None}
    (found,) = of([READ, end])
    assert (found.outcome, found.points, found.max, found.graded) == ("out of time", 0, 2, True)
    (found,) = of([READ, {"event": "end", "why": "", "code": 1, "log": "a\nValueError: no"}])
    assert (found.outcome, found.graded) == ("not started", False)
    assert "ValueError: no" in found.note


def test_a_file_that_cannot_be_read_counts_for_the_exercise_it_is_named_after():
    told = {"event": "unreadable", "outcome": "empty", "text": "nothing in it"}
    (found,) = of([told], path=Path("x/F.ipynb"))
    assert (found.exercise, found.max, found.graded) == ("f", 2, False)
    (found,) = of([told], path=Path("x/h.ipynb"))
    assert (found.exercise, found.max) == ("", 0)


def test_the_folder_of_another_lesson_is_said():
    (found,) = of([READ], lesson="01_y")
    assert "it was in the folder of 01_y" in found.note
    (found,) = of([READ], lesson="homework")
    assert "lay in" not in found.note


def test_exercises_not_handed_in_have_a_row_without_points():
    found = rows.with_missing([row(), row("bob")], GIVEN[:1] + [
        Handout("00_x", "h", (Cell("h-check", "code", "", "", True, False, 3.0, "h"),))
    ])  # fmt: skip
    assert [(r.student, r.exercise, r.outcome, r.max) for r in found] == [
        ("anna", "f", "wrong", 2),
        ("anna", "h", "not handed in", 3),
        ("bob", "f", "wrong", 2),
        ("bob", "h", "not handed in", 3),
    ]
