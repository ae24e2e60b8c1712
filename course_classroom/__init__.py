"""The notebook side of the course: ranks for cells, diagnosis of hangs, and checks.

`%load_ext course_classroom` provides `%%ranks`, `%ranks` and `%%extra`. Ranks start only when they
are first used. The modules that every rank needs are imported once, in the background.
"""

from __future__ import annotations

import importlib


def load_ipython_extension(shell) -> None:
    from course_classroom.notebook import missing_packages
    from course_classroom.notebook.extra import ExtraMagics
    from course_classroom.notebook.magic import RanksMagics
    from course_classroom.ranks.wire import KERNEL
    from course_lib.processes import prepare

    prepare(KERNEL)  # while the learner reads the first lines
    if "RanksMagics" not in shell.magics_manager.registry:
        shell.register_magics(RanksMagics, ExtraMagics)
    missing_packages.install(shell)


def __getattr__(name: str):
    # Looked up late because a rank also imports this package and does not need a notebook's magics.
    if name in ("push", "pull"):
        from course_classroom.notebook import magic

        return getattr(magic, name)
    if name == "sliders":
        return importlib.import_module("course_classroom.notebook.sliders")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
