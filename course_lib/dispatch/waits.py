"""Hear of every `Work.wait()` in Python, before and after: the one patch of torch's method.

It is a method of a class in C++, and the only place where a wait, and the end of a point-to-point
message, can be seen. Torch is as it was once nothing listens any more.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import FrameType

import torch.distributed as dist

_lock = threading.Lock()


class WaitListener:
    """What hears of waits; either method may be left as it is."""

    def before_wait(self, work: dist.Work) -> None:
        """A handle is about to be waited for; an exception in here is raised in its place."""

    def after_wait(self, work: dist.Work, start: float, caller: FrameType) -> None:
        """The wait that began at `start` (`perf_counter`) has returned; one that raised has not."""


@dataclass(eq=False)
class _Method:
    """A method that stands in for torch's, what it stands in for, and who hears of its calls."""

    function: Callable
    original: Callable
    listeners: list[WaitListener]


_methods: list[_Method] = []  # more than one only where others have put a method over ours


@contextmanager
def listening(listener: WaitListener) -> Iterator[None]:
    """Let `listener` hear of the waits in here, once each, however often it is listening."""
    with _lock:
        method = next((one for one in _methods if one.function is dist.Work.wait), None)
        if method is None:
            method = _heard(dist.Work.wait)
            dist.Work.wait = method.function
            _methods.append(method)
        method.listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            del method.listeners[[other is listener for other in method.listeners].index(True)]
            if not method.listeners and dist.Work.wait is method.function:
                dist.Work.wait = method.original
                _methods.remove(method)


def _heard(original: Callable) -> _Method:
    """A method that does as `original` does, and tells its listeners."""
    listeners: list[WaitListener] = []

    def wait(work: dist.Work, *args: object, **kwargs: object):
        start = perf_counter()
        heard_by = list({id(listener): listener for listener in listeners}.values())
        for listener in heard_by:
            listener.before_wait(work)
        result = original(work, *args, **kwargs)
        for listener in heard_by:
            listener.after_wait(work, start, sys._getframe(1))
        return result

    return _Method(wait, original, listeners)
