"""How the bootstrap speaks: one line a step, and a refusal that carries its remedy.

Every way in which setting up can fail ends in a Refusal: what happened, then what to do.
No lesson derives it.
"""

from __future__ import annotations

import os
import sys
import time


class Refusal(Exception):
    """Setting up cannot go on: the cause, and what the reader can do about it."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}\nRemedy: {remedy}")
        self.cause = cause
        self.remedy = remedy
        self.halfway = False  # whether packages may have been left half-written


def say(text: str) -> None:
    """One step, at once, even into a pipe."""
    print(f"[course] {text}", flush=True)


def complain(text: str) -> None:
    """The same on stderr, after everything already said."""
    sys.stdout.flush()
    print("\n".join(f"[course] {line}" for line in text.splitlines()), file=sys.stderr, flush=True)


class Watch:
    """Seconds since it was made, in words; and what its programs have had of the processors."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._worked = _of_children()

    @property
    def worked(self) -> str:
        """Processor time of the programs that have ended since, user and system."""
        return in_words(_of_children() - self._worked)

    def __str__(self) -> str:
        return in_words(time.monotonic() - self._start)


def in_words(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def _of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system
