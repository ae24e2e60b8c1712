"""In what condition is .venv: absent, ready, to be brought up to date, to be made anew, not ours.

Looks and tells, changes nothing. A stamp inside .venv says what was installed, and where; a note
beside it says that an installation is under way. No lesson derives it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from .closed import closed_part
from .interpreters import Interpreter, ask
from .torch_build import same_release

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
    """One of absent, ready, update, renew, foreign, link, closed; and why, in words."""

    state: str
    why: str
    extras: tuple[str, ...] = ()


def python_of(venv: Path) -> Path:
    return venv / "bin" / "python"


def contents(venv: Path) -> dict[str, Any] | None:
    """Its Python's version and its packages; None if its Python does not run."""
    try:
        answer = subprocess.run(
            [str(python_of(venv)), "-I", "-c", _LIST],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def note(venv: Path, name: str) -> dict[str, Any] | None:
    """The stamp or the note of that name; None if absent or unreadable."""
    try:
        found = json.loads((venv / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_note(venv: Path, name: str, what: dict[str, Any]) -> None:
    """Whole or not at all."""
    draft = venv / (name + ".new")
    draft.write_text(json.dumps(what, indent=1, sort_keys=True), encoding="utf-8")
    os.replace(draft, venv / name)


def look(venv: Path, wanted: tuple[str, ...], pins: str, hashes: str = "") -> Condition:
    """The condition of `venv` for somebody who needs the extras `wanted` at the pins `pins`,
    verified by `hashes` where that is not empty."""
    if venv.is_symlink():
        return Condition("link", f"it is a link to {os.readlink(str(venv))}")
    if venv.exists() and not os.access(str(venv), os.R_OK | os.X_OK):
        return Condition("closed", str(venv))
    if not venv.exists() or (venv.is_dir() and not any(venv.iterdir())):
        return Condition("absent", "there is none yet")
    if (venv / UNFINISHED).exists():
        unfinished = note(venv, UNFINISHED) or {}
        both = tuple(sorted({*wanted, *unfinished.get("extras", ())}))
        if unfinished.get("ended") and contents(venv) is not None:
            return Condition("update", "the last installation failed before its end", both)
        return Condition("renew", "an installation was interrupted in the middle", both)
    stamp = note(venv, STAMP)
    if stamp is None:
        if (venv / STAMP).exists():
            return Condition("renew", "its stamp cannot be read", wanted)
        return Condition("foreign", "it was not made by this course")
    both = tuple(sorted({*wanted, *stamp.get("extras", ())}))
    if stamp.get("home") != str(venv.resolve()):
        return Condition("renew", f"it was made as {stamp.get('home')} and has been moved", both)
    now = contents(venv)
    lost = _lost(stamp.get("packages", {}), now["packages"]) if now else ""
    if now is None or lost:  # what may not be read looks broken, or missing
        place = closed_part(python_of(venv))
        if place is not None:
            return Condition("closed", str(place), both)
    if now is None:
        return Condition("renew", "its Python no longer runs (was it removed or upgraded?)", both)
    if now["python"] != stamp.get("python"):
        why = f"it was made with Python {stamp.get('python')} and now finds {now['python']}"
        return Condition("renew", why, both)
    asked = os.environ.get("PYTHON")
    named = ask(asked) if asked else None
    if named is not None and _minor(named) != now["python"]:
        why = f"PYTHON={asked} asks for Python {named.dotted}, and it has {now['python']}"
        return Condition("renew", why, both)
    if hashes and stamp.get("hashes") != hashes:
        return Condition("renew", "its packages were not verified by the hashes asked for", both)
    if stamp.get("pins") != pins:
        return Condition("update", "constraints.txt or pyproject.toml has changed since", both)
    if lost:
        return Condition("update", lost, both)
    new = sorted(set(wanted) - set(stamp.get("extras", ())))
    if new:
        return Condition("update", f"it still lacks: {', '.join(new)}", both)
    return Condition("ready", "as stamped", both)


def _minor(one: Interpreter) -> str:
    return f"{one.version[0]}.{one.version[1]}"


def _lost(stamped: dict[str, str], present: dict[str, str]) -> str:
    """What was installed and is there no more, or in another version, in words; else empty."""
    gone = sorted(set(stamped) - set(present))
    if gone:
        return f"{_few(gone)} {'has' if len(gone) == 1 else 'have'} been removed from it"
    other = sorted(
        name
        for name, version in stamped.items()
        if present[name] != version
        and not (name == "torch" and same_release(present[name], version.split("+")[0]))
    )
    if other:
        return f"{_few(other)} {'is' if len(other) == 1 else 'are'} not of the pinned version"
    return ""


def _few(names: list[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
