"""One line of the doctor's report: what was looked at, how it stands, what to do about it.

Three levels: `ok`, `note` (the course runs; something is slower or missing), `bad` (a part of the
course will fail here). What is bad always carries its remedy. `ask` puts a question to a program of
the system.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Answer:
    """How a program ended (None: it is not there or was too slow) and what it printed."""

    code: int | None
    out: str = ""
    said: str = ""  # its complaint, or ours about it

    @property
    def good(self) -> bool:
        return self.code == 0


def ask(command: list[str], limit: float = 20.0, folder: Path | None = None) -> Answer:
    """Run a program to its end, or to `limit` seconds."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", "NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired:
        return Answer(None, said=f"{command[0]} did not end within {limit:g} s")
    except OSError as error:
        return Answer(None, said=f"{command[0]} cannot be run ({error.strerror})")
    return Answer(done.returncode, done.stdout, (done.stderr or done.stdout).strip())


def size(count: float) -> str:
    """Bytes in words, in units of 1000: 64 MB, 1.5 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            digits = ".3g" if count < 100 * scale else ".0f"
            return f"{count / scale:{digits}} {unit}"
    return f"{count:.0f} bytes"
