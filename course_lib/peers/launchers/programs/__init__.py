"""Small programs for launchers: one reports its environment, and one fails as real programs do.

Lesson 13.
"""

from __future__ import annotations

from pathlib import Path


def path(name: str) -> Path:
    """Return the file of a program, for a launcher's command line."""
    return Path(__file__).with_name(f"{name}.py")
