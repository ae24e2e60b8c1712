"""Progress in a plain file: who writes it, what a damaged line costs, what a full disk does."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import threading
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from course_classroom.judge import desk as desk_module
from course_classroom.judge import frame
from course_classroom.judge.desk import Desk
from course_classroom.judge.finding import NotJudged
from course_classroom.progress import log as progress
from course_classroom.progress.log import FILE, MARK, Progress, here

RIGHT, WRONG = {"A": 2, "B": 1, "C": 0}, {"A": 0, "B": 0, "C": 2}


@pytest.fixture
def workspace(tmp_path) -> Path:
    """A workspace with a folder of exercises in it."""
    (tmp_path / "work" / MARK).mkdir(parents=True)
    (tmp_path / "work" / "exercises" / "01_collectives").mkdir(parents=True)
    return tmp_path / "work"


@pytest.fixture
def inside(workspace, monkeypatch) -> Path:
    """The workspace, with this process where the kernel of one of its notebooks would be."""
    monkeypatch.chdir(workspace / "exercises" / "01_collectives")
    return workspace


def everything(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def use(desk: Desk) -> None:
    """A learner's quarter of an hour."""
    desk.check("who_hangs", {}, {"who_hangs": WRONG})
    desk.hint("who_hangs")
    desk.check("who_hangs", {}, {"who_hangs": RIGHT})
    desk.predict("01.two", 8, "MB")
    desk.predict("01.four", ..., "MB")  # a blank is no prediction
    desk.measured("01.two", 4.8, "MB")


def test_checks_hints_and_predictions_are_written_down(inside):
    use(Desk())
    lines = [json.loads(line) for line in (inside / FILE).read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["check", "hint", "check", "prediction", "measured"]
    assert all(line["at"][10] == "T" for line in lines)
    wrong, hint, right, guess, found = lines
    assert (wrong["exercise"], wrong["outcome"], wrong["points"]) == ("who_hangs", "wrong", 0)
    assert wrong["name"] == "the first that is listed"
    assert (hint["exercise"], hint["number"]) == ("who_hangs", 1)
    assert (right["outcome"], right["points"], right["of"]) == ("right", 3, 3)
    assert (guess["question"], guess["value"], guess["unit"]) == ("01.two", 8, "MB")
    assert (found["value"], found["predicted"]) == (4.8, 8)
    assert everything(inside) == [inside / FILE]


@pytest.mark.parametrize(
    ("guess", "value", "said"),
    [
        (100.4, 100.0, "100.4 MB, less than 1 % off."),
        (102.0, 100.0, "102.0 MB, 1.02 times as much."),
        (-100.0, 100.0, "-100.0 MB, -1 times as much."),
        (3, 4, "3 MB."),
        (5.5, 0, "5.5 MB."),
    ],
)
def test_a_prediction_that_is_close_is_called_close(guess, value, said):
    desk = Desk()
    desk.predict("01.two", guess, "MB")
    assert desk.measured("01.two", value, "MB").endswith(f"Prediction: {said}")


def test_the_lessons_of_a_notebook_are_those_of_what_was_done_in_it():
    desk = Desk()
    assert desk.lessons((), "/home/01_ana/work/notebooks/notebook") == set()
    assert desk.lessons((), "/w/notebooks/04_the_megatron_mlp.ipynb") == {"04"}
    assert desk.lessons((), "/w/exercises/07_vocabulary/notebook") == {"07"}
    assert desk.lessons((), "/w/exercises/99_none/ring.ipynb") == set()
    assert desk.lessons(["ring_all_reduce", "helper"], "a.ipynb") == {"01"}
    desk.predict("09.bytes", 3, "GB")
    desk.hint("choose_unit")
    desk.check("who_hangs", {}, {"who_hangs": WRONG})
    assert desk.lessons((), "") == {"01", "09", "11"}


def test_my_progress_shows_this_notebook_s_lesson_and_the_others_in_a_line(
    inside, monkeypatch, capsys
):
    shell = InteractiveShell()
    monkeypatch.setattr(desk_module, "get_ipython", lambda: shell)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    use(Desk())
    total = sum(e.points for lesson, of in frame.lessons().items() for e in of if lesson != "01")
    desk_module.my_progress()
    said = capsys.readouterr().out
    assert said.startswith("Lesson 01: 3 of ") and "✓ who_hangs" in said
    assert said.count("Lesson ") == 1 and len(said.splitlines()) < 15
    assert f"The other lessons: 0 of {total}. `my_progress(everything=True)` lists" in said
    monkeypatch.chdir(inside)  # as where the notebook's name tells nothing
    desk_module.my_progress()
    said = capsys.readouterr().out
    assert said.startswith("All lessons: 3 of ") and len(said.splitlines()) == 2
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/05_attention_by_heads.ipynb")
    desk_module.my_progress()
    assert capsys.readouterr().out.startswith("Lesson 05: 0 of ")
    desk_module.my_progress(everything=True)
    assert capsys.readouterr().out.count("Lesson ") == len(frame.lessons())


def test_what_is_not_judged_is_not_written_down_and_no_answer_is(inside, monkeypatch):
    def busy(given):
        raise NotJudged("The machine is busy.")

    numbers = {"ring_bytes": {2: 12345, 3: 12345, 4: 12345, 8: 12345}}
    Desk().check("ring_bytes", {}, numbers)
    written = (inside / FILE).read_text()
    assert "ring_bytes" in written and "12345" not in written
    asked = dataclasses.replace(frame.find("who_hangs"), judge=busy)
    monkeypatch.setattr(frame, "find", lambda name: asked)
    verdict = Desk().check("who_hangs", {}, {"who_hangs": RIGHT})
    assert str(verdict) == "– who_hangs: not judged\nThe machine is busy."
    assert (inside / FILE).read_text() == written


def test_outside_of_a_workspace_nothing_is_written(tmp_path, monkeypatch, capfd):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    assert here() is None
    use(Desk())
    assert everything(tmp_path) == [] and capfd.readouterr().err == ""
    (tmp_path / "gone").rmdir()
    assert here() is None
    monkeypatch.chdir(tmp_path)


def test_the_nearest_workspace_is_the_one(workspace):
    inner = workspace / "exercises" / MARK
    inner.mkdir()
    assert here(workspace / "exercises" / "01_collectives").path == workspace / "exercises" / FILE
    assert here(workspace).path == workspace / FILE


def test_a_line_that_broke_off_costs_itself_alone(workspace):
    book = Progress(workspace)
    log = book.read()
    assert (log.events, log.damaged, log.best("f")) == ([], [], None), "no file yet"
    assert book.record("check", exercise="f", points=2) == ""
    with open(book.path, "a") as file:
        file.write('{"at": "2026-11-21T23:00:00+01:00", "kind": "che')
    assert book.record("check", exercise="f", points=4) == ""
    log = book.read()
    assert [event["points"] for event in log.events] == [2, 4]
    assert log.damaged == [2] and log.best("f")["points"] == 4


def test_what_is_no_event_is_counted_as_damaged(workspace):
    book = Progress(workspace)
    book.path.write_bytes(b'{"kind": "hint"}\n\n[1]\n3\n{"no": "kind"}\n{"kind": 7}\n\xff\xfe{\n')
    log = book.read()
    assert [event["kind"] for event in log.events] == ["hint"]
    assert log.damaged == [3, 4, 5, 6, 7]


def test_the_best_check_is_the_first_that_came_furthest(workspace):
    book = Progress(workspace)
    tries = [("not attempted", 0), ("wrong", 0), ("not attempted", 0), ("wrong", 0)]
    tries += [("right", 4), ("wrong", 0), ("right", 4)]
    for furthest, (outcome, points) in zip([0, 1, 1, 1, 4, 4, 4], tries, strict=True):
        book.record("check", exercise="f", outcome=outcome, points=points, of=4)
        log = book.read()
        assert log.best("f") is log.of("check", exercise="f")[furthest]


def test_a_writer_waits_for_another_and_not_for_ever(workspace, monkeypatch):
    book = Progress(workspace)
    with open(book.path, "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr(progress, "PATIENCE", 0.05)
        trouble = book.record("hint", exercise="f")
        assert "another program held it" in trouble
        assert book.path.read_text() == ""
        monkeypatch.setattr(progress, "PATIENCE", 60.0)
        said: list[str] = []
        waiting = threading.Thread(target=lambda: said.append(book.record("hint", exercise="f")))
        waiting.start()
        fcntl.flock(other, fcntl.LOCK_UN)
        waiting.join(60)
    assert said == [""]
    assert len(book.read().events) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_what_cannot_be_written_is_said_and_the_verdict_stands(inside, capfd):
    (inside / FILE).symlink_to("/dev/full")
    verdict = Desk().check("who_hangs", {}, {"who_hangs": RIGHT})
    assert verdict.outcome == "right"
    said = capfd.readouterr().err
    assert f"was not written to {FILE} (No space left on device)" in said
    assert "everything else works" in said
