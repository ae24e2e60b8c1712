"""Small programs that launchers start: one reports what it was handed, others fail as real ones do.

Lesson 13.
"""

from __future__ import annotations

from pathlib import Path


def path(name: str) -> Path:
    """The file of a program, for a launcher's command line."""
    file = Path(__file__).with_name(f"{name}.py")
    if not file.is_file() or name.startswith("_"):
        names = sorted(x.stem for x in file.parent.glob("[a-z]*.py"))
        raise ValueError(f"no program is called {name!r}: it is one of {', '.join(names)}")
    return file
