"""Processes forked from a process that has already imported torch: a rank starts in milliseconds.

Other packages call `processes.start`, which starts the ranks of notebooks, of the judge and of the
tests. If forking is not safe, this function starts a new interpreter instead.
Lesson 00.
"""

from course_lib.processes.client import Child, NotPrepared, Preparer
from course_lib.processes.processes import Wanted, close, pids, prepare, ready, start, why_spawned

__all__ = [
    "Child",
    "NotPrepared",
    "Preparer",
    "Wanted",
    "close",
    "pids",
    "prepare",
    "ready",
    "start",
    "why_spawned",
]
