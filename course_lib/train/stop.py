"""Being asked to stop: the first signal is noted, a second one ends the process at once.

SIGTERM comes from a scheduler some seconds before the end, SIGINT from a person, SIGHUP where a
terminal closes. Python runs a handler between two of its own lines, so the second is read by a
thread: a rank that waits inside a collective hears it too. Lesson 08.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ONE = 0.2  # seconds within which two signals are one request that came by two ways


def heard() -> list[signal.Signals]:
    """Those that end a run; not SIGHUP where it is ignored, as nohup has it."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [one for one in SIGNALS if not (one == signal.SIGHUP and ignored)]


def insists(number: int) -> bool:
    """Whether a signal after the first asks to end at once. SIGHUP does not: the kernel and a shell
    both send it when a terminal closes, one some time after the other."""
    return number in SIGNALS and number != signal.SIGHUP


class Stop:
    """Notes the first signal of this process; made once, in the main thread."""

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
    """Stands in for the default, which would end the process."""


def end_with(descriptor: int, last: Callable[[], object]) -> None:
    """End this process when the other end of a pipe is closed: its starter is no more, and `last`
    takes away what that can no longer."""

    def watch() -> None:
        while os.read(descriptor, 1):
            continue
        try:
            last()
        finally:
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="starter").start()
