"""The `course` command: one file for each person who types it, and what they share in `base.py`.

Lesson 00 uses it first.
"""

from __future__ import annotations

from course_lib.cli import author, lab, running
from course_lib.cli.base import app

__all__ = ["app", "author", "lab", "main", "running"]


def main() -> None:
    app()
