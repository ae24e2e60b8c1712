"""A course page before its first code cell has run: what is not there says what to do.

After *Kernel → Restart* nothing is loaded: IPython knows no `%%ranks`, and Python none of the names
that the cells above have made. A kernel of `make lab` loads this at its start; `%load_ext
course_classroom` takes its place.
"""

from __future__ import annotations

import os
from pathlib import Path

from IPython.core.error import UsageError

from course_classroom.notebook import missing_packages

EXTENSION = __name__
NOT_YET = (
    "{what} is not there yet: this kernel was started anew, and the notebook's first code cell "
    "(`%load_ext course_classroom`) has not been run in it. Run that cell, then the cells "
    "below it again, since all variables are gone. The menu Run, Run All Above Selected Cell, does "
    "both."
)
# What course_lib had at its top in 0.1, and has elsewhere now.
GONE = [["axes"], ["classroom"], ["cli"], ["deepspeed_config"], ["dispatch"], ["figures"]]
GONE += [["launchers"], ["nodes"], ["prepared"], ["quantization"], ["ways"]]
MOVED = (
    "{name} is not in course_lib any more: this notebook is a copy of an older release. "
    "`.venv/bin/course reset` with its number in a terminal gives you today's and keeps yours as a "
    "backup; or write `%load_ext course_classroom` in its first cell, and import `check`, `hint` "
    "and `predict` from `course_classroom.judge`."
)


def load_ipython_extension(shell) -> None:
    """Registers `ranks` as a magic of lines and cells, and an answer to unknown names, unless the
    real one is there."""
    if "RanksMagics" not in shell.magics_manager.registry:
        shell.register_magic_function(_ranks, "line_cell", "ranks")
        shell.register_magic_function(_extra, "line_cell", "extra")
        shell.set_custom_exc((NameError, ModuleNotFoundError), _unknown_name)
    missing_packages.install(shell)


def _ranks(line: str, cell: str | None = None) -> None:
    raise UsageError(NOT_YET.format(what="%%ranks"))


def _extra(line: str, cell: str | None = None) -> None:
    raise UsageError(NOT_YET.format(what="%%extra"))


def _unknown_name(shell, kind, error, trace, tb_offset=None) -> None:
    """Show the error as IPython does, or say in its place what is missing on a course's page."""
    name, text = error.name or "", ""
    if isinstance(error, ModuleNotFoundError):
        package, *rest = name.split(".")
        text = MOVED.format(name=name) if package == "course_lib" and rest[:1] in GONE else ""
    elif name and _page_of_the_course() and "RanksMagics" not in shell.magics_manager.registry:
        text = NOT_YET.format(what=name)
    if text:
        error._render_traceback_ = lambda: [f"{kind.__name__}: {text}"]
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def _page_of_the_course() -> bool:
    """Whether the notebook lies in notebooks/ or in exercises/LESSON/, by its name."""
    folders = Path(os.environ.get("JPY_SESSION_NAME", "")).parts[:-1]
    return folders[-1:] == ("notebooks",) or folders[-2:-1] == ("exercises",)
