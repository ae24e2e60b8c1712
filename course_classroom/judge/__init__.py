"""Checks of exercises, hints and predictions: what a notebook imports from here, and nothing more.

One file a lesson says what right means, `frame.py` what all checks have in common. From lesson 01
on.
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
    """`check`, and with it the process that one of the judge's ranks will be forked from.

    A notebook that imports it is going to check something; others, and ranks, spare the memory.
    """
    if name != "check":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from course_classroom.judge import desk
    from course_classroom.ranks.wire import KERNEL
    from course_lib.processes import prepare

    prepare(KERNEL, odd=True)
    # The checks, and torch with them, while the learner writes: else the first check waits for it.
    threading.Thread(target=_import_lessons, daemon=True).start()
    globals()["check"] = desk.check  # it is asked for once
    return desk.check


def _import_lessons() -> None:
    with contextlib.suppress(Exception):  # whatever it is, the check itself will tell it
        from course_classroom.judge import frame

        frame.lessons()
