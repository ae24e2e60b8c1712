"""The typer app with every command in it: importing a command's file adds it.

No lesson derives it.
"""

from __future__ import annotations

from course_lib.cli import (  # noqa: F401
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

__all__ = ["app"]
