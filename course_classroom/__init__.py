"""The notebook's side of the course: ranks under a cell, hangs that explain themselves, checks.

`%load_ext course_classroom` brings `%%ranks`, `%ranks` and `%%extra`. No rank starts before it
is used; what every rank has to import is imported in the background, once.
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
    # Looked up late: a rank imports this package too, and has no use for a notebook's magics.
    if name in ("push", "pull"):
        from course_classroom.notebook import magic

        return getattr(magic, name)
    if name == "sliders":
        return importlib.import_module("course_classroom.notebook.sliders")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
