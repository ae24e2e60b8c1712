"""The threads that a cell has started on a rank, when the cell is over and they still call.

A call of theirs would meet the next cell's, and take its numbers or wait in its place. So it is
refused, and one that already waits is named, with its cell. Runs inside every rank (lesson 00).
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
    """A thread's call after the end of the cell that has started it; says all in a sentence."""


class CellThreads:
    """Knows of each thread which cell has started it, and refuses its calls after that cell."""

    def __init__(self, find_line: Place):
        self.cell: tuple[int, str] = (0, "")  # number and label of the cell that runs; 0 for none
        self._find_line = find_line
        self._started_in: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._told: weakref.WeakSet = weakref.WeakSet()  # those whose end need not be told again
        start, complain = threading.Thread.start, threading.excepthook

        def noted_start(thread: threading.Thread) -> None:
            if self.cell[0]:
                self._started_in[thread] = self.cell
            start(thread)

        def complaint(arguments) -> None:
            # The end of a call that has been told may itself be a LateCall: torch notes an error
            # with its group's numbers, and by then another cell may be running.
            if arguments.thread in self._told:
                return
            if issubclass(arguments.exc_type, LateCall):
                print(arguments.exc_value, file=sys.stderr)
            else:
                complain(arguments)

        threading.Thread.start, threading.excepthook = noted_start, complaint

    def refuse_late(self) -> None:
        """Raise where this call comes from a learner's thread whose cell has ended."""
        started = self._started_in.get(threading.current_thread(), self.cell)
        where, source = self._find_line(stacks.own(sys._getframe(1)))
        if started != self.cell and where:
            raise LateCall(
                f"A call was refused, of a thread that {started[1]} started ({where}: "
                f"{source[:80]}). That cell has ended, and the call could meet those of a later "
                "one: wait for a thread in its own cell, by thread.join()."
            )

    def waiting(self) -> list[str]:
        """The calls in which learners' threads are at this moment, in words."""
        return [text for _, text in self._in_calls()]

    def give_up(self) -> None:
        """Their calls have been told, so how they end need not be."""
        self._told.update(thread for thread, _ in self._in_calls())

    def _in_calls(self) -> Iterator[tuple[threading.Thread, str]]:
        every = stacks.of_all() if self._started_in else {}
        for thread in list(self._started_in):
            calls = every.get(thread.ident, [])
            where, source = self._find_line(calls)
            verbs = [call.name for call in calls if call.file == dist.distributed_c10d.__file__]
            if verbs and where and thread not in self._told:
                yield thread, f"{verbs[0]} ({where}: {source[:80]})"
