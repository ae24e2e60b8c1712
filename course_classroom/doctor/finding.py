"""One line of the doctor's report: what was looked at, how it stands, what to do about it.

Three levels: `ok`, `note` (the course runs; something is slower or missing), `bad` (a part of the
course will fail here). What is bad always carries its remedy. `ask` puts a question to a program of
the system.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

INSTALL = "make setup, or python -m pip install -c constraints.txt -e '.[classroom]'"
ASK = "please report it with this text to the keepers of the course; the other checks went on"


@dataclass(frozen=True)
class Finding:
    name: str
    level: str
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.level == "bad" and not self.remedy:
            raise ValueError(f"{self.name} is bad and has no remedy: {self.found}")

    def as_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """Something to look at: its name, how, and the seconds after which it counts as hung."""

    name: str
    look: Callable[[], list[Finding]]
    limit: float = 30.0


def guarded(check: Check) -> list[Finding]:
    """What the check finds, or one bad line that says how it failed.

    It runs in a thread that is not waited for beyond its limit: a driver that never answers must
    not keep the rest of the report back.
    """
    answers: list[list[Finding]] = []

    def look() -> None:
        try:
            answers.append(check.look())
        except ModuleNotFoundError as error:
            told = f"cannot be looked at: the package {error.name} is not installed"
            answers.append([Finding(check.name, "bad", told, INSTALL)])
        except BaseException as error:  # SystemExit too: a library's exit is not the doctor's
            told = f"this check itself failed: {type(error).__name__}: {error}"
            answers.append([Finding(check.name, "bad", told, ASK)])

    thread = threading.Thread(target=look, name=f"doctor: {check.name}", daemon=True)
    thread.start()
    thread.join(check.limit)
    if answers:
        return answers[0]
    told = f"no answer within {check.limit:g} s"
    return [Finding(check.name, "bad", told, f"try again when the machine is less busy, or {ASK}")]


def size(count: float) -> str:
    """Bytes in words, in units of 1000: 64 MB, 1.5 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            digits = ".3g" if count < 100 * scale else ".0f"
            return f"{count / scale:{digits}} {unit}"
    return f"{count:.0f} bytes"
