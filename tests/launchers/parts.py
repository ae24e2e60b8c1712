"""A launcher of the tests' own: a few lines of sh, so that a run takes no launcher's seconds."""

from __future__ import annotations

import sys

from course_lib.launchers import commands
from course_lib.launchers.commands import Launcher, Started


def shell(monkeypatch, text: str, **options) -> str:
    """Make a launcher of these lines; $PYTHON $RANK_PY is a rank. Its name, for `run`."""

    def start(call):
        variables = {"PYTHON": sys.executable, "RANK_PY": str(call.program)}
        return Started(["sh", "-c", text], variables, **options)

    entry = Launcher(start, "sh", "", module=False)
    monkeypatch.setattr(commands, "LAUNCHERS", {**commands.LAUNCHERS, "shell": entry})
    return "shell"


def program(folder, text: str):
    """A program of Python for ranks to run."""
    file = folder / "program.py"
    file.write_text(text)
    return file
