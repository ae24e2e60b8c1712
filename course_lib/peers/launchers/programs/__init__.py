"""Small programs that launchers start: one reports what it was handed, one fails as real ones do.

Lesson 13.
"""

from __future__ import annotations

from pathlib import Path


def path(name: str) -> Path:
    """The file of a program, for a launcher's command line."""
    return Path(__file__).with_name(f"{name}.py")
