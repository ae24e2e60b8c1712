"""Hear of every `Work.wait()` in Python, before and after: the one patch of torch's method.

It is a method of a class in C++, and the only place where a wait, and the end of a point-to-point
message, can be seen. Torch is as it was once nothing listens any more.
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
_listeners: list[WaitListener] = []  # an entry for each `listening` that is open
_put_back: Callable[[], None] | None = None


class WaitListener:
    """What hears of waits; either method may be left as it is."""

    def before_wait(self, work: dist.Work) -> None:
        """A handle is about to be waited for; an exception in here is raised in its place."""

    def after_wait(self, work: dist.Work, start: float, caller: FrameType) -> None:
        """The wait that began at `start` (`perf_counter`) has returned; one that raised has not."""


@contextmanager
def listening(listener: WaitListener) -> Iterator[None]:
    """Let `listener` hear of the waits in here, once each, however often it is listening."""
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
    """Put a method over torch's that does the same and tells the listeners. Where others have put
    theirs over it by the end, it stays below, and tells nothing more."""
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
