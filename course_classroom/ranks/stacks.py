"""The Python calls of a thread, innermost first, and of all threads at a single moment.

A different thread continues while Python code walks its frames, and CPython 3.11 can crash if a
frame ends meanwhile. In contrast, faulthandler walks them in C while no thread runs. Lesson 00.
"""

from __future__ import annotations

import faulthandler
import re
import tempfile
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)")
CALL = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class Call(NamedTuple):
    file: str
    line: int
    name: str


def own(frame: FrameType | None) -> Iterator[Call]:
    """Yield the calls of the running thread, from the given frame outwards."""
    while frame is not None:
        yield Call(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


def of_all() -> dict[int, list[Call]]:
    """Return the innermost hundred calls of every thread, by thread ident."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read().decode("ascii", "backslashreplace")
    found: dict[int, list[Call]] = {}
    calls: list[Call] = []
    for line in text.splitlines():
        if thread := THREAD.match(line):
            calls = found.setdefault(int(thread[1], 16), [])
        elif call := CALL.match(line):
            name = call[1].encode().decode("unicode_escape")  # it writes ASCII
            calls.append(Call(name, int(call[2]), call[3]))
    return found
