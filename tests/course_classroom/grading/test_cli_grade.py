"""`course grade` refuses what it should before it runs anything, each time with the remedy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_classroom.cli import app
from course_classroom.grading import marking
from tests.course_classroom.grading.hand_in import MEAN, RIGHT, ROOT, answered, save
from tests.course_classroom.grading.test_twelve import HANG, left
from tests.support.commands import until


@pytest.fixture
def course(tmp_path, monkeypatch):
    """`course grade …` in an empty folder; nothing may be graded in these tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COURSE_SANDBOX", raising=False)
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    save(answered(RIGHT), tmp_path / "in" / "ana.ipynb")

    def never(*_):
        raise AssertionError("something was graded")

    monkeypatch.setattr(marking.Grading, "_one", never)
    return lambda *words: CliRunner().invoke(app, ["grade", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none"], "none is not a folder"),
        (["in", "--lesson", "77"], "01_collectives"),
        *((["in", f"--memory={one}"], one) for one in ("lots", "4 bananas", "100MB", "-4GB")),
    ],
)
def test_a_wrong_call_is_told_what_is_wrong(course, words, said):
    done = course(*words, "--sandboxed")
    assert (done.exit_code, said in done.stderr) == (2, True)


def test_root_is_refused_outside_of_a_sandbox(course, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    done = course("in")
    assert done.exit_code == 1
    assert "as root" in done.stderr and "--sandboxed" in done.stderr
    assert not Path("grades.csv").exists()


def test_a_temporary_folder_with_too_long_a_path_is_refused(course, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "x" * 60)
    done = course("in", "--sandboxed")
    assert (done.exit_code, "TMPDIR" in done.stderr) == (1, True)


def test_an_empty_folder_is_said(course, tmp_path):
    (tmp_path / "empty").mkdir()
    done = course("empty", "--sandboxed")
    assert (done.exit_code, "nothing to grade" in done.stderr) == (1, True)


def test_somebody_elses_file_is_not_overwritten(course):
    Path("grades.csv").write_text("my own work\n")
    done = course("in", "--sandboxed")
    assert (done.exit_code, "--csv" in done.stderr) == (1, True)
    assert Path("grades.csv").read_text() == "my own work\n"


def test_in_a_sandbox_it_says_what_it_does_and_goes_on(course, monkeypatch):
    monkeypatch.setenv("COURSE_SANDBOX", "1")
    monkeypatch.setattr(marking.Grading, "grade", lambda self, found: [])
    done = course("in", "--json")
    assert done.exit_code == 0, done.output
    assert "runs other people's code" in done.stderr
    assert json.loads(done.stdout)["rows"] == []


def test_only_the_folder_of_the_lesson_asked_for_is_looked_at(course, tmp_path, monkeypatch):
    for lesson in ("00_start_here", "01_collectives", "homework"):
        save(answered(RIGHT), tmp_path / "all" / "ana" / lesson / f"{MEAN}.ipynb")
    seen = []
    monkeypatch.setattr(marking.Grading, "grade", lambda self, found: seen.extend(found) or [])
    course("all", "--sandboxed", "--lesson", "00", "--json")
    assert [one.lesson for one in seen] == ["00_start_here", "homework"]


KILLED = pytest.param(signal.SIGKILL, marks=pytest.mark.slow)


@pytest.mark.parametrize("how", [signal.SIGINT, KILLED])
def test_grading_that_is_broken_off_leaves_nothing(tmp_path_factory, how):
    tmp_path = tmp_path_factory.mktemp("b")
    save(answered(HANG), tmp_path / "in" / "eli.ipynb")
    (tmp_path / "t").mkdir()
    running = subprocess.Popen(
        [sys.executable, "-m", "course_classroom.cli", "grade", "in", "--sandboxed"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "t")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run as a shell's background job ignore it, and would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    begun = "r/run-*/rank-0.log" if how == signal.SIGKILL else "log"
    try:
        until(lambda: any(tmp_path.glob(f"t/*/0/{begun}")), 100)
        running.send_signal(how)
        said = running.communicate(timeout=60)[1]
    finally:
        running.kill()
        running.wait()
    if how == signal.SIGINT:
        assert running.returncode == 1
        assert "nothing is written" in said
    until(lambda: left(tmp_path) == [], 60)
    assert not (tmp_path / "grades.csv").exists()
