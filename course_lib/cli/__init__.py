"""The `course` command: one file for each person who types it, and what they share in `base.py`.

Lesson 00 uses it first.
"""

from __future__ import annotations

from course_lib.cli import (
    author,
    doctor,
    dry_run,
    ds_check,
    estimate,
    grade,
    lab,
    ladder,
    learner,
    plan,
    running,
    train,
    weights,
)
from course_lib.cli.base import app

__all__ = [
    "app",
    "author",
    "doctor",
    "dry_run",
    "ds_check",
    "estimate",
    "grade",
    "lab",
    "ladder",
    "learner",
    "main",
    "plan",
    "running",
    "train",
    "weights",
]


def main() -> None:
    app()
