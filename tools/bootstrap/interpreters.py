"""The choice of the Python for an environment: the first suitable one. No lesson derives it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import NamedTuple

from .say import Refusal

OLDEST = (3, 10)
NEWEST = (3, 13)
NAMES = ("python3", "python3.13", "python3.12", "python3.11", "python3.10")
SPAN = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"

_QUESTION = """
import importlib.util, json, sys
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "path": sys.executable,
    "venv": all(importlib.util.find_spec(n) is not None for n in ("venv", "ensurepip")),
}))
"""


class Interpreter(NamedTuple):
    """A Python that was found and runs."""

    path: str
    version: tuple[int, ...]
    venv: bool

    @property
    def fits(self) -> bool:
        return OLDEST <= tuple(self.version[:2]) <= NEWEST

    @property
    def dotted(self) -> str:
        return ".".join(map(str, self.version))


def ask(command: str) -> Interpreter | None:
    """Ask `command` for its version; None if it does not run (a version manager's shim may not)."""
    try:
        answer = subprocess.run(
            [command, "-I", "-c", _QUESTION], capture_output=True, text=True, timeout=30, check=True
        )
        found = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Interpreter(found["path"] or command, tuple(found["version"]), bool(found["venv"]))


def choose() -> Interpreter:
    """Choose the Python in PYTHON, else the first suitable of NAMES, those with venv first."""
    named = os.environ.get("PYTHON")
    answers = [one for one in map(ask, [named] if named else NAMES) if one is not None]
    fitting = sorted((one for one in answers if one.fits), key=lambda one: not one.venv)
    if not fitting and named:
        what = f"is Python {answers[0].dotted}" if answers else "does not run for you"
        raise Refusal(
            f"PYTHON={named} {what}; the course needs {SPAN}.",
            "give the full path of a different Python, or unset PYTHON",
        )
    if not fitting:
        seen = ", ".join(sorted({one.dotted for one in answers})) or "none at all"
        raise Refusal(
            f"The course needs Python {SPAN}, but this PATH has {seen}.",
            "install one by apt install python3 python3-venv (Debian, Ubuntu), brew install "
            "python@3.12 (macOS) or module load (cluster), then PYTHON=/path/to/it make ...",
        )
    if not fitting[0].venv and shutil.which("uv") is None:
        raise Refusal(
            f"Python {fitting[0].dotted} ({fitting[0].path}) has no venv module with ensurepip, so "
            "no environment can be created.",
            "on Debian or Ubuntu, apt install python3-venv; without root, install uv, or use "
            "PYTHON=/path/to/another make ...",
        )
    return fitting[0]
