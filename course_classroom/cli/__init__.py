"""The `course` command: a module for each group of commands, and `base.py` for the shared parts.

`main` imports the commands inside its own `try`, because Ctrl-C may arrive during the import.
Lesson 00 is the first to use the command.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command that the learner typed in the shell."""
    try:
        try:
            from course_classroom.cli.commands import app
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("course_"):
                raise
            sys.exit(
                f"course: the package {error.name} is not installed, but the commands need it. "
                "Remedy: pip install 'course_lib[classroom]'"
            )
        app()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def __getattr__(name: str) -> object:
    """Import `app` and all its commands when `app` is first accessed."""
    if name == "app":
        from course_classroom.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
