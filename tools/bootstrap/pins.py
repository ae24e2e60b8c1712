"""What should be installed: the pins, and a fingerprint that changes when they do.

Ranges stand in pyproject.toml, exact pins in constraints.txt; both are read as text here.
No lesson derives it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from .say import Refusal

# Raised when the bootstrap itself lays an environment out differently than before.
LAYOUT = 1


def torch_pin(constraints: Path) -> str:
    """The release of torch that constraints.txt names."""
    found = re.search(r"^torch==([\w.]+)\s*$", _text(constraints), re.MULTILINE)
    if found is None:
        raise Refusal(
            f"{constraints.name} pins no release of torch.", "git checkout constraints.txt"
        )
    return found.group(1)


def fingerprint(root: Path) -> str:
    """Changes whenever pins, ranges, extras or this bootstrap's layout do; not with mere prose."""
    pins = [
        line.strip()
        for line in _text(root / "constraints.txt").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    project = _text(root / "pyproject.toml")
    installed = [
        section
        for section in re.split(r"^(?=\[)", project, flags=re.MULTILINE)
        if re.match(r"\[(project|build-system|tool\.setuptools)", section)
    ]
    told = "\n".join([str(LAYOUT), *pins, *installed])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Refusal(
            f"{file.name} is missing, so this is not a whole clone of the course.",
            f"git checkout {file.name}, or clone anew",
        ) from None
