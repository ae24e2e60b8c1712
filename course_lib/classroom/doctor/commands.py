"""A program of the system, asked a question: bounded, quiet, in plain English.

No lesson derives it.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


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
