"""The condition of .venv: absent, ready, to be updated, to be recreated, or not ours.

This module only inspects and changes nothing. A stamp inside .venv records the installed packages
and the location; a note next to it records an installation in progress. No lesson derives it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from .interpreters import ask
from .say import Refusal

STAMP = "course-stamp.json"
UNFINISHED = "course-unfinished.json"

_LIST = """
import importlib.metadata, json, sys
found = {}
for one in importlib.metadata.distributions():
    name = one.metadata["Name"]
    if name:
        found.setdefault(name.lower().replace("_", "-").replace(".", "-"), one.version)
print(json.dumps({"python": "%d.%d" % sys.version_info[:2], "packages": found}))
"""


class Condition(NamedTuple):
    """The state (absent, ready, update, renew or foreign) and the reason."""

    state: str
    why: str
    extras: tuple[str, ...] = ()


def python_of(venv: Path) -> Path:
    return venv / "bin" / "python"


def contents(venv: Path) -> dict[str, Any] | None:
    """Read the Python version and packages of an environment; None if its Python does not run."""
    try:
        answer = subprocess.run(
            [str(python_of(venv)), "-I", "-c", _LIST],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def note(venv: Path, name: str) -> dict[str, Any]:
    """Read the stamp or note with this name; empty if absent or unreadable."""
    try:
        found = json.loads((venv / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(venv: Path, name: str, what: dict[str, Any]) -> None:
    """Write a note completely or not at all."""
    draft = venv / (name + ".new")
    draft.write_text(json.dumps(what, indent=1, sort_keys=True), encoding="utf-8")
    os.replace(draft, venv / name)


def look(venv: Path, wanted: tuple[str, ...], pins: str, hashes: str = "") -> Condition:
    """Determine the condition of `venv` for the extras `wanted` at the pins `pins`, and verified by
    `hashes` if that is not empty."""
    if venv.is_symlink():
        return Condition("foreign", f"a link to {os.readlink(str(venv))}")
    if not venv.exists() or not any(venv.iterdir()):
        return Condition("absent", "it does not exist yet", wanted)
    stamp, unfinished = note(venv, STAMP), note(venv, UNFINISHED)
    both = tuple(sorted({*wanted, *unfinished.get("extras", ()), *stamp.get("extras", ())}))
    now = contents(venv)
    if (venv / UNFINISHED).exists():
        if unfinished.get("ended") and now is not None:
            return Condition("update", "the last installation failed before its end", both)
        return Condition("renew", "an installation was interrupted", both)
    if not (venv / STAMP).exists():
        return Condition("foreign", "not created by this course")
    if stamp.get("home") != str(venv.resolve()):
        return Condition("renew", f"it was created as {stamp.get('home')} and has been moved", both)
    if now is None:
        return Condition("renew", "its Python no longer runs (was it removed or upgraded?)", both)
    named = ask(os.environ["PYTHON"]) if os.environ.get("PYTHON") else None
    asked = ".".join(map(str, named.version[:2])) if named else now["python"]
    if not now["python"] == stamp.get("python") == asked:
        return Condition("renew", f"it has Python {now['python']}, but {asked} is requested", both)
    if hashes and stamp.get("hashes") != hashes:
        return Condition("renew", "its packages were not verified by the requested hashes", both)
    if stamp.get("pins") != pins:
        return Condition("update", "constraints.txt or pyproject.toml has changed since", both)
    installed, present = stamp.get("packages", {}), now["packages"]
    changed = [name for name in sorted(installed) if present.get(name) != installed[name]]
    if changed and not (changed == ["torch"] and same_release(present.get("torch"), installed)):
        few = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
        return Condition("update", f"removed or changed since then: {few}", both)
    new = sorted(set(wanted) - set(stamp.get("extras", ())))
    if new:
        return Condition("update", f"it lacks {', '.join(new)}", both)
    return Condition("ready", "as stamped", both)


def same_release(torch: str | None, packages: dict[str, str]) -> bool:
    """Return True if a torch build (2.13.0+cpu) is of the packages' release (2.13.0)."""
    return torch is not None and torch.split("+")[0] == packages.get("torch", "").split("+")[0]


def torch_pin(constraints: Path) -> str:
    """Return the torch release that constraints.txt pins."""
    found = re.search(r"^torch==([\w.]+)\s*$", _text(constraints), re.MULTILINE)
    if found is None:
        raise Refusal(f"{constraints.name} does not pin torch.", "git checkout constraints.txt")
    return found.group(1)


def fingerprint(root: Path) -> str:
    """Return a hash that changes with pins, ranges or extras, but not with prose."""
    lines = _text(root / "constraints.txt").splitlines()
    pins = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    sections = re.split(r"^(?=\[)", _text(root / "pyproject.toml"), flags=re.MULTILINE)
    told = [one for one in sections if re.match(r"\[(project|build-system|tool\.setuptools)", one)]
    return hashlib.sha256("\n".join(["1", *pins, *told]).encode()).hexdigest()[:16]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Refusal(
            f"{file.name} is missing, so this is not a complete clone of the course.",
            f"git checkout {file.name}, or clone again",
        ) from None
