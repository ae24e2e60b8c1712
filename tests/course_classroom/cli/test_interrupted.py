"""Ctrl-C while a command is being imported, or runs: exit code 130, and no traceback."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from course_classroom.cli import app
from course_classroom.cli.base import ROOT
from tests.support.commands import python

INTERRUPTED_AT = """
import sys
class Interrupt:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv = ["course", *{words!r}]
from {entry[0]} import {entry[1]} as entry
entry()
"""


def entry_point() -> list[str]:
    """The module and the function that the installed `course` calls."""
    (line,) = [x for x in (ROOT / "pyproject.toml").read_text().splitlines() if "course = " in x]
    return line.partition("=")[2].strip().strip('"').split(":")


@pytest.mark.parametrize("module", ["typer", "course_classroom.cli.weights", "course_lib.estimate"])
def test_while_it_is_imported(module):
    words = ["estimate", "--params", "7B", "--stage", "2"]
    script = INTERRUPTED_AT.format(module=module, words=words, entry=entry_point())
    done = python("-c", script)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr


def test_while_it_runs(monkeypatch):
    from course_classroom.ranks import runs

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "all_runs", interrupt)
    done = CliRunner().invoke(app, ["stop"])
    assert done.exit_code == 130 and "Aborted" not in done.output
