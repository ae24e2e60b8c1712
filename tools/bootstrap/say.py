"""The messages of the bootstrap: one line per step, and refusals with a remedy.

Every possible failure of the setup ends in a Refusal that states the cause and the remedy. No
lesson derives it.
"""

from __future__ import annotations

import os
import sys
import time


class Refusal(Exception):
    """The error if the setup cannot continue, with its cause and the reader's remedy."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}\nRemedy: {remedy}")
        self.cause = cause
        self.remedy = remedy
        self.halfway = False  # True if packages may be incomplete


def say(text: str) -> None:
    """Print one step immediately, even into a pipe."""
    print(f"[course] {text}", flush=True)


def complain(text: str) -> None:
    """Print to stderr, after all earlier output."""
    sys.stdout.flush()
    print("\n".join(f"[course] {line}" for line in text.splitlines()), file=sys.stderr, flush=True)


class Watch:
    """The seconds since its creation, in words, and the processor time of its programs."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._worked = _of_children()

    @property
    def worked(self) -> str:
        """Processor time (user and system) of the programs that have ended since."""
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
