"""`course check`: one's own answers, as they are saved, judged and noted down in the progress."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from course_classroom.cli import app
from course_classroom.progress.log import MARK, Progress
from tests.course_classroom.grading.hand_in import (
    MEAN,
    RIGHT,
    WHO,
    WHO_RIGHT,
    WRONG,
    answered,
    blank,
    save,
)


@pytest.fixture
def work(tmp_path_factory, monkeypatch) -> Path:
    """A learner's workspace, empty but for its mark."""
    work = tmp_path_factory.mktemp("w")
    (work / MARK).mkdir()
    monkeypatch.setenv("COURSE_WORK", str(work))
    monkeypatch.setenv("COURSE_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    return work


def check(*words: str):
    here = Path.cwd()
    done = CliRunner().invoke(app, ["check", *words])
    assert Path.cwd() == here
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def place(work: Path, name: str) -> Path:
    return work / "exercises" / "00_start_here" / f"{name}.ipynb"


def test_a_lesson_is_checked_and_noted_down(work):
    save(answered(WRONG), place(work, MEAN))
    save(answered(WHO_RIGHT, WHO), place(work, WHO))
    done = check("00", "--json")
    assert done.exit_code == 1
    told = {one["exercise"]: one for one in json.loads(done.stdout)["checks"]}
    assert (told[MEAN]["outcome"], told[MEAN]["misconception"]) == ("wrong", "sum")
    assert (told[WHO]["outcome"], told[WHO]["points"]) == ("right", 1)
    noted = Progress(work).read().of("check")
    assert {(e["exercise"], e["outcome"], e["points"]) for e in noted} == {
        (MEAN, "wrong", 0),
        (WHO, "right", 1),
    }


def test_one_exercise_that_is_right_and_nothing_is_left(work):
    save(answered(RIGHT), place(work, MEAN))
    done = check(MEAN)
    assert done.exit_code == 0, done.output
    assert "mean_over_ranks: right (2 of 2 points)" in done.stdout
    runtime, living = os.environ["COURSE_RUNTIME_DIR"], []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # one that is just ending
            living.append(" ".join(process.cmdline()))
    assert not [line for line in living if f" {runtime}/" in line]
    assert not list(Path(runtime).iterdir())


def test_a_notebook_by_its_path_outside_of_any_workspace(work, tmp_path, monkeypatch):
    path = save(blank(WHO), tmp_path / "mine.ipynb")
    done = check(str(path))
    assert (done.exit_code, "not attempted" in done.stdout) == (1, True)
    assert Progress(work).read().events == []


def test_a_notebook_that_was_never_opened_is_said(work):
    done = check("00", "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)["checks"]
    assert [one["outcome"] for one in told] == ["not opened"] * 2
    assert "make lab" in told[0]["text"]
    assert "course check exercises/" in done.stderr


def test_a_notebook_that_cannot_be_read_is_said(work):
    place(work, WHO).parent.mkdir(parents=True)
    place(work, WHO).write_text("{")
    done = check(WHO)
    assert (done.exit_code, "not a notebook" in done.stdout) == (1, True)


@pytest.mark.parametrize("what", ["77", "no_such_exercise", "none.ipynb"])
def test_what_there_is_not_is_a_wrong_call(work, what):
    done = check(what)
    assert done.exit_code == 2
    assert what in done.stderr
