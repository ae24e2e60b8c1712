"""Help for a course page before its first code cell has run.

After *Kernel → Restart* nothing is loaded: IPython does not know `%%ranks`, and Python knows no
name from the cells above. Kernels of `make lab` load this module at their start, and `%load_ext
course_classroom` replaces it.
"""

from __future__ import annotations

import os
from pathlib import Path

from IPython.core.error import UsageError

from course_classroom.notebook import missing_packages

EXTENSION = __name__
NOT_YET = (
    "{what} does not exist yet, because this kernel was restarted and the notebook's first code "
    "cell (`%load_ext course_classroom`) has not run since. Run that cell, then the cells below "
    "it again, because all variables are gone. The menu item Run, Run All Above Selected Cell "
    "does both."
)
# Names at the top of course_lib in 0.1 that have since moved.
GONE = [["axes"], ["classroom"], ["cli"], ["deepspeed_config"], ["dispatch"], ["figures"]]
GONE += [["launchers"], ["nodes"], ["prepared"], ["quantization"], ["ways"]]
MOVED = (
    "{name} is no longer in course_lib, because this notebook is a copy of an older release. Run "
    "`.venv/bin/course reset` with its number in a terminal to get today's version and keep yours "
    "as a backup. Alternatively, write `%load_ext course_classroom` in its first cell, and import "
    "`check`, `hint` and `predict` from `course_classroom.judge`."
)


def load_ipython_extension(shell) -> None:
    """Register `ranks` as a line and cell magic, and a handler for unknown names, unless the real
    magic is loaded."""
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
    """Show the error as IPython does, or on a course page the message about a missing name."""
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
    """Return True if the notebook is in notebooks/ or in exercises/LESSON/, by its name."""
    folders = Path(os.environ.get("JPY_SESSION_NAME", "")).parts[:-1]
    return folders[-1:] == ("notebooks",) or folders[-2:-1] == ("exercises",)
