"""Checks of exercises, hints and predictions: the names that a notebook imports from here.

Each lesson's package defines its right answers, and `frame.py` the common parts. From lesson 01 on.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from course_classroom.judge.desk import cell_of, hint, measured, my_progress, predict

if TYPE_CHECKING:
    from course_classroom.judge.desk import check

__all__ = ["cell_of", "check", "hint", "measured", "my_progress", "predict"]


def __getattr__(name: str):
    """Return `check`, and prepare the process from which the judge's ranks will be forked.

    Only notebooks that import `check` need the process; others, and ranks, save its memory.
    """
    if name != "check":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from course_classroom.judge import desk
    from course_classroom.ranks.wire import KERNEL
    from course_lib.processes import prepare

    prepare(KERNEL, odd=True)
    # Import checks and torch while the learner writes, so the first check need not wait for them.
    threading.Thread(target=_import_lessons, daemon=True).start()
    globals()["check"] = desk.check  # it is requested only once
    return desk.check


def _import_lessons() -> None:
    with contextlib.suppress(Exception):  # the check itself will report any error
        from course_classroom.judge import frame

        frame.lessons()
