"""Listeners called before and after every `Work.wait()` in Python, by the only patch of torch.

`Work.wait` is a method of a C++ class. A wait and the end of a point-to-point message can only be
observed there. The patch is removed when the last listener stops.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType

import torch.distributed as dist

_lock = threading.Lock()
_listeners: list[WaitListener] = []  # one entry for each open `listening`
_put_back: Callable[[], None] | None = None


class WaitListener:
    """A listener for waits, in which either method may be left empty."""

    def before_wait(self, work: dist.Work) -> None:
        """Handle a wait before it begins. An exception raised here replaces the wait."""

    def after_wait(self, work: dist.Work, start: float, caller: FrameType) -> None:
        """Handle a wait that began at `start` (`perf_counter`) and returned without error."""


@contextmanager
def listening(listener: WaitListener) -> Iterator[None]:
    """Notify `listener` of each wait in the body once, even if it listens several times."""
    with _lock:
        if not _listeners:
            _patch()
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            del _listeners[[other is listener for other in _listeners].index(True)]
            if not _listeners:
                _put_back()


def _patch() -> None:
    """Replace torch's method by one that notifies the listeners too. If other code patches it
    later, this method stays installed but notifies no listener after the last has stopped."""
    global _put_back
    original, done = dist.Work.wait, []

    def wait(work: dist.Work, *args: object, **kwargs: object):
        start = perf_counter()
        heard_by = {} if done else {id(listener): listener for listener in list(_listeners)}
        for listener in heard_by.values():
            listener.before_wait(work)
        result = original(work, *args, **kwargs)
        for listener in heard_by.values():
            listener.after_wait(work, start, sys._getframe(1))
        return result

    def put_back() -> None:
        done.append(True)
        if dist.Work.wait is wait:
            dist.Work.wait = original

    dist.Work.wait, _put_back = wait, put_back
