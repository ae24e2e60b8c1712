"""The library installed without the course: commands that work on its files say that in a line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from course_classroom.cli import app, author, grade, lab, learner
from tests.support.commands import python

CALLS = {
    "bench": 2, "bench loss": 2, "check 01": 2, "grade .": 1, "handout copy": 1, "lab --prepare": 1,
    "notebooks": 2, "release": 2, "reset 03": 2, "reset": 2, "status": 1,
}  # fmt: skip


@pytest.mark.parametrize("words", CALLS)
def test_a_command_without_the_course_says_what_it_needs(words, tmp_path, monkeypatch):
    for module in (author, grade, lab, learner):
        monkeypatch.setattr(module, "ROOT", tmp_path / "site-packages")
    (tmp_path / "site-packages").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COURSE_WORK", str(tmp_path / "work"))
    done = CliRunner().invoke(app, words.split())
    assert isinstance(done.exception, SystemExit), done.exception
    assert (done.exit_code, done.stdout) == (CALLS[words], "")
    assert done.stderr.startswith("course: ") and len(done.stderr.splitlines()) <= 3
    assert str(tmp_path) in done.stderr


def test_the_command_of_the_bare_library_says_what_it_needs():
    hidden = "import sys; sys.modules['typer'] = None; from course_classroom import cli; cli.main()"
    ended = python("-c", hidden)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert "typer is not installed" in ended.stderr and "course_lib[classroom]" in ended.stderr
