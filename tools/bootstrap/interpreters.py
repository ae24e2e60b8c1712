"""Which Python an environment is made from, and how an environment is made.

The first that fits wins; one that cannot make environments by itself may be helped by virtualenv.
No lesson derives it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from .closed import closed_part
from .closed import refusal as closed
from .pip_words import diagnose
from .say import Refusal, say

OLDEST = (3, 10)
NEWEST = (3, 13)
NAMES = ("python3", "python3.13", "python3.12", "python3.11", "python3.10")

_QUESTION = """
import importlib.util, json, sys
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "path": sys.executable,
    "venv": all(importlib.util.find_spec(n) is not None for n in ("venv", "ensurepip")),
    "virtualenv": importlib.util.find_spec("virtualenv") is not None,
}))
"""


class Interpreter(NamedTuple):
    """A Python that answered."""

    path: str
    version: tuple[int, ...]
    venv: bool
    virtualenv: bool

    @property
    def fits(self) -> bool:
        return OLDEST <= tuple(self.version[:2]) <= NEWEST

    @property
    def dotted(self) -> str:
        return ".".join(map(str, self.version))


def span() -> str:
    """The versions that fit, in words."""
    return f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def ask(command: str) -> Interpreter | None:
    """What `command` says of itself; None if it does not run (a version manager's shim may not)."""
    try:
        answer = subprocess.run(
            [command, "-I", "-c", _QUESTION], capture_output=True, text=True, timeout=30, check=True
        )
        found = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Interpreter(
        found["path"] or command, tuple(found["version"]), found["venv"], found["virtualenv"]
    )


def choose() -> Interpreter:
    """The Python named by PYTHON, else the first of NAMES that fits, those with venv first."""
    named = os.environ.get("PYTHON")
    if named:
        one = ask(named)
        if one is None:
            place = closed_part(Path(shutil.which(named) or named).expanduser())
            if place is not None:
                raise closed(f"PYTHON={named}", place)
            raise Refusal(
                f"PYTHON={named} does not run.",
                "give the full path of a Python " + span() + ", or leave PYTHON unset",
            )
        if not one.fits:
            raise Refusal(
                f"PYTHON={named} is Python {one.dotted}; the course needs {span()}.",
                "name another, or leave PYTHON unset",
            )
        return _able([one])
    answers = [one for one in map(ask, NAMES) if one is not None]
    fitting = [one for one in answers if one.fits]
    if not fitting:
        seen = ", ".join(sorted({one.dotted for one in answers})) or "none at all"
        raise Refusal(
            f"The course needs Python {span()}; found on this PATH: {seen}.",
            "install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install "
            "python@3.12; a cluster: module avail python), then PYTHON=/path/to/it make ...",
        )
    return _able(fitting)


def _able(fitting: list[Interpreter]) -> Interpreter:
    """The first that can make an environment; a clear word if none can."""
    for one in fitting:
        if one.venv:
            return one
    for one in fitting:
        if one.virtualenv or shutil.which("virtualenv"):
            return one
    one = fitting[0]
    minor = f"{one.version[0]}.{one.version[1]}"
    raise Refusal(
        f"Python {one.dotted} ({one.path}) has no venv module with ensurepip, and virtualenv is "
        "not there either, so no environment can be made.",
        f"Debian, Ubuntu: apt install python3-venv (or python{minor}-venv); without root: "
        f"{one.path} -m pip install --user virtualenv; or PYTHON=/path/to/another make ...",
    )


def make_environment(one: Interpreter, folder: Path) -> None:
    """An empty environment with pip in `folder`."""
    if one.venv:
        command = [one.path, "-m", "venv", "--prompt", "course", str(folder)]
    elif one.virtualenv:
        command = [one.path, "-m", "virtualenv", "--prompt", "course", str(folder)]
    else:
        command = ["virtualenv", "--python", one.path, "--prompt", "course", str(folder)]
    say(f"making {folder.name} with Python {one.dotted} ({one.path})")
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode != 0:
        told = diagnose(done.stdout)
        tail = "\n".join(done.stdout.strip().splitlines()[-6:])
        raise told or Refusal(
            f"{' '.join(command)} failed (exit {done.returncode}):\n{tail}",
            "if it names ensurepip: apt install python3-venv; else PYTHON=/another/python make ...",
        )
