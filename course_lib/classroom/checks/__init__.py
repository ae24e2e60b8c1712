"""Checks of exercises, hints and predictions: what a notebook imports from here, and nothing more.

One file a lesson says what right means, `frame.py` what all checks have in common. From lesson 01
on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.classroom.checks.desk import cell_of, hint, measured, my_progress, predict

if TYPE_CHECKING:
    from course_lib.classroom.checks.desk import check

__all__ = ["cell_of", "check", "hint", "measured", "my_progress", "predict"]


def __getattr__(name: str):
    """`check`, and with it the process that one of the judge's ranks will be forked from.

    A notebook that imports it is going to check something; others, and ranks, spare the memory.
    """
    if name != "check":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from course_lib.classroom.checks import desk
    from course_lib.classroom.wire import KERNEL
    from course_lib.prepared import prepare

    prepare(KERNEL, odd=True)
    return desk.check
