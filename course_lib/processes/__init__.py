"""Processes forked from one that has imported torch already: a rank starts in milliseconds.

`processes.start` is what the rest of the house calls. The ranks of notebooks, of the judge and of
the tests come from here; where forking is not safe, the same call starts a new interpreter.
Lesson 00.
"""

from course_lib.processes.client import Child, NotPrepared, Preparer
from course_lib.processes.processes import (
    Wanted,
    close,
    pids,
    prepare,
    ready,
    start,
    why_spawned,
)

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
