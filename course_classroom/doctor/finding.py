"""A line of the doctor's report: the subject, its state, and the remedy.

There are three levels: `ok`, `note` (the course runs, but something is slower or missing) and `bad`
(part of the course will fail here). A `bad` finding always has a remedy. `ask` runs a system
program and returns its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

INSTALL = "make setup, or python -m pip install -c constraints.txt -e '.[classroom]'"
ASK = "please report this text to the maintainers of the course; the other checks continued"


@dataclass(frozen=True)
class Finding:
    name: str
    level: str
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.level == "bad" and not self.remedy:
            raise ValueError(f"{self.name} is bad but has no remedy: {self.found}")

    def as_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """A check: its name, its function, and the limit in seconds after which it counts as hung."""

    name: str
    look: Callable[[], list[Finding]]
    limit: float = 30.0


def guarded(check: Check) -> list[Finding]:
    """Return the findings of the check, or a single `bad` finding that states how it failed.

    The check runs in a thread that is abandoned after its time limit, because a driver that never
    answers must not hold back the rest of the report.
    """
    answers: list[list[Finding]] = []

    def look() -> None:
        try:
            answers.append(check.look())
        except ModuleNotFoundError as error:
            told = f"this check needs the package {error.name}, which is not installed"
            answers.append([Finding(check.name, "bad", told, INSTALL)])
        except BaseException as error:  # SystemExit too: a library's exit must not end the doctor
            told = f"this check failed: {type(error).__name__}: {error}"
            answers.append([Finding(check.name, "bad", told, ASK)])

    thread = threading.Thread(target=look, name=f"doctor: {check.name}", daemon=True)
    thread.start()
    thread.join(check.limit)
    if answers:
        return answers[0]
    told = f"no answer within {check.limit:g} s"
    return [Finding(check.name, "bad", told, f"try again when the machine is less busy, or {ASK}")]


def size(count: float) -> str:
    """Format a number of bytes in decimal units, such as 64 MB or 1.5 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            digits = ".3g" if count < 100 * scale else ".0f"
            return f"{count / scale:{digits}} {unit}"
    return f"{count:.0f} bytes"
