"""Threads that a cell has started on a rank and that still make calls after its end.

Such a call would match the next cell's calls and take their data or wait in their place. Therefore
it is refused, and a waiting call is reported with its cell (lesson 00).
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator

import torch.distributed as dist

from course_classroom.ranks import stacks

Place = Callable[[Iterable[stacks.Call]], tuple[str, str]]  # the learner's line nearest to a call


class LateCall(RuntimeError):
    """An error for a thread's call after the end of the cell that started the thread."""


class CellThreads:
    """A record of the cell that started each thread, which refuses calls after that cell's end."""

    def __init__(self, find_line: Place):
        self.cell: tuple[int, str] = (0, "")  # number and label of the running cell; 0 for none
        self._find_line = find_line
        self._started_in: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._told: weakref.WeakSet = weakref.WeakSet()  # threads whose end is already reported
        start, complain = threading.Thread.start, threading.excepthook

        def noted_start(thread: threading.Thread) -> None:
            if self.cell[0]:
                self._started_in[thread] = self.cell
            start(thread)

        def complaint(arguments) -> None:
            # The end of a reported call may itself be a LateCall, because torch records an error
            # with its group's numbers when a later cell may be running.
            if arguments.thread in self._told:
                return
            if issubclass(arguments.exc_type, LateCall):
                print(arguments.exc_value, file=sys.stderr)
            else:
                complain(arguments)

        threading.Thread.start, threading.excepthook = noted_start, complaint

    def refuse_late(self) -> None:
        """Raise an error if this call comes from a learner's thread whose cell has ended."""
        started = self._started_in.get(threading.current_thread(), self.cell)
        where, source = self._find_line(stacks.own(sys._getframe(1)))
        if started != self.cell and where:
            raise LateCall(
                f"A call was refused because it comes from a thread that {started[1]} started "
                f"({where}: {source[:80]}). That cell has ended, and the call could meet those of "
                "a later one. Wait for a thread in its own cell, with thread.join()."
            )

    def waiting(self) -> list[str]:
        """Describe the calls in which learners' threads wait now."""
        return [text for _, text in self._in_calls()]

    def give_up(self) -> None:
        """Mark these threads' calls as reported, so that their ends are not reported again."""
        self._told.update(thread for thread, _ in self._in_calls())

    def _in_calls(self) -> Iterator[tuple[threading.Thread, str]]:
        every = stacks.of_all() if self._started_in else {}
        for thread in list(self._started_in):
            calls = every.get(thread.ident, [])
            where, source = self._find_line(calls)
            verbs = [call.name for call in calls if call.file == dist.distributed_c10d.__file__]
            if verbs and where and thread not in self._told:
                yield thread, f"{verbs[0]} ({where}: {source[:80]})"
