"""`%%ranks` before the notebook's first code cell has run: it says which cell to run.

After *Kernel → Restart* nothing is loaded, and IPython only knows that it knows no such magic. A
kernel of `make lab` loads this at its start; `%load_ext course_lib.classroom` takes its place.
"""

from __future__ import annotations

from IPython.core.error import UsageError

from course_lib.classroom import missing_packages

EXTENSION = __name__
NOT_YET = (
    "%%ranks is not there yet: this kernel was started anew, and the notebook's first code cell "
    "(`%load_ext course_lib.classroom`) has not been run in it. Run that cell, then the cells "
    "below it again, since all variables are gone. The menu Run, Run All Above Selected Cell, does "
    "both."
)


def load_ipython_extension(shell) -> None:
    """Registers `ranks` as a magic of lines and cells, unless the real one is there."""
    if "RanksMagics" not in shell.magics_manager.registry:
        shell.register_magic_function(_ranks, "line_cell", "ranks")
    missing_packages.install(shell)


def _ranks(line: str, cell: str | None = None) -> None:
    raise UsageError(NOT_YET)
