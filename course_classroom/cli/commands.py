"""The typer app with all commands. Importing a command's file adds it to the app."""

from __future__ import annotations

from course_classroom.cli import (  # noqa: F401
    author,
    doctor,
    ds_check,
    estimate,
    grade,
    lab,
    ladder,
    learner,
    plan,
    running,
    weights,
)
from course_classroom.cli.base import app

__all__ = ["app"]
