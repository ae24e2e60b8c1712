"""The `course` command: one file for each person who types it, and what they share in `base.py`.

`main` imports the commands inside its own try, because Ctrl-C may come while they are imported.
Lesson 00 uses it first.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command that was typed."""
    try:
        try:
            from course_classroom.cli.commands import app
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("course_"):
                raise
            sys.exit(
                f"course: the package {error.name} is not installed here; the library alone does "
                "without it. Remedy: pip install 'course_lib[classroom]'"
            )
        app()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def __getattr__(name: str) -> object:
    """`app` with every command in it, imported when it is asked for."""
    if name == "app":
        from course_classroom.cli.commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
