"""The system calls of a save, counted one by one; at the one that is asked for, a fault."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

HEARD = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
WRITES = ("pwrite", "fsync", "os.mkdir", "open w")
Fault = Callable[[str, Callable[[], object]], None]


class Calls:
    """Hears of every file that this process touches below a folder, while `begin` to `end`.

    Python's audit hooks come before the call, and an error in one takes its place; they cannot be
    taken off again, so this is for processes that end with the test (`alone=True`)."""

    def __init__(self, folder: str):
        self.folder = str(folder)
        self.names: list[str] = []  # of the calls, in their order
        self.fault: Fault | None = None
        self.on = False
        sys.addaudithook(self._heard)
        for name in ("pwrite", "fsync"):
            setattr(os, name, self._counted(name, getattr(os, name)))

    def begin(self, fault: Fault | None = None) -> None:
        self.names, self.fault, self.on = [], fault, True

    def end(self) -> list[str]:
        self.on = False
        return self.names

    def _heard(self, event: str, arguments: tuple) -> None:
        if not self.on or event not in HEARD:
            return
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, (str, bytes)) or not os.fsdecode(path).startswith(self.folder):
                return
            event = "open w" if flags & (os.O_WRONLY | os.O_RDWR) else "open r"
        self._count(event, lambda: None)

    def _counted(self, name: str, function: Callable) -> Callable:
        def counted(file: int, *arguments):
            if self.on:
                half = [arguments[0][: len(arguments[0]) // 2], *arguments[1:]] if arguments else []
                self._count(name, lambda: function(file, *half))
            return function(file, *arguments)

        return counted

    def _count(self, name: str, in_part: Callable[[], object]) -> None:
        self.names.append(name)
        if self.fault is not None:
            self.on = False  # what the fault itself does is no call of the save
            try:
                self.fault(name, in_part)
            finally:
                self.on = True


def at(number: int, act: Callable[[], None], only: str = "") -> Fault:
    """A fault at the call of that number, of that name; what is written then is written in half."""
    calls = iter(range(1, 1 << 60))

    def fault(name: str, in_part: Callable[[], object]) -> None:
        if name.startswith(only) and next(calls) == number:
            in_part()
            act()

    return fault


def kill(pids: list[int]) -> Callable[[], None]:
    """SIGKILL to these processes; this one, if it is among them, comes last."""

    def act() -> None:
        for pid in sorted(pids, key=lambda pid: pid == os.getpid()):
            os.kill(pid, signal.SIGKILL)

    return act


def error(number: int, name: str | None = None) -> Callable[[], None]:
    """The system's answer, in place of doing what it was asked for."""

    def act() -> None:
        raise OSError(number, os.strerror(number), *([name] if name else []))

    return act


def spread(count: int, over: int) -> list[int]:
    """`count` numbers from 1 to `over`, evenly spaced, the first and the last among them."""
    return [1 + round(k * (over - 1) / (count - 1)) for k in range(count)]
