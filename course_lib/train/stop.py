"""Requests to stop: the first signal is noted, and a second one ends the process at once.

SIGTERM comes from a scheduler some seconds before the end, SIGINT from a person, SIGHUP from a
closing terminal. Python runs handlers only between two lines of Python, so a thread reads the
second signal. A rank that waits inside a collective therefore reacts too. Lesson 08.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ONE = 0.2  # seconds within which two signals are one request that arrived twice


def heard() -> list[signal.Signals]:
    """List the signals that end a run, without SIGHUP if that is ignored, as under nohup."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [one for one in SIGNALS if not (one == signal.SIGHUP and ignored)]


def insists(number: int) -> bool:
    """Return True if a signal after the first demands an immediate end. SIGHUP does not, because
    the kernel and a shell both send it when a terminal closes."""
    return number in SIGNALS and number != signal.SIGHUP


class Stop:
    """The first signal of this process; created once, in the main thread."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._reads, writes = os.pipe()
        os.set_blocking(writes, False)
        signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        for one in heard():
            signal.signal(one, _noted_elsewhere)
        threading.Thread(target=self._listen, daemon=True, name="signals").start()

    @property
    def asked(self) -> bool:
        return self.signal is not None

    def _listen(self) -> None:
        first = 0.0
        while number := os.read(self._reads, 1):
            if number[0] not in SIGNALS:
                continue
            now = time.monotonic()
            if self.signal is None:
                first, self.signal = now, signal.Signals(number[0])
            elif insists(number[0]) and now - first > ONE:
                name = signal.Signals(number[0]).name
                sys.stderr.write(f"course train: ended at once by a second signal, {name}\n")
                os._exit(128 + number[0])


def _noted_elsewhere(number: int, frame: object) -> None:
    """Replace the default handler, which would end the process."""


def end_with(descriptor: int, last: Callable[[], object]) -> None:
    """End this process when the other end of a pipe closes because its starter is gone; `last` then
    does the starter's cleanup."""

    def watch() -> None:
        while os.read(descriptor, 1):
            continue
        try:
            last()
        finally:
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="starter").start()
