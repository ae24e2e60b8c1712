"""What all commands share: the typer app, the course's folder, the --json option.

Exit code 0 is good, 1 means findings or a failure, 2 a wrong call. With --json one JSON document
goes to standard output and nothing else does.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup


class Course(TyperGroup):
    """The command itself: it prints in any terminal, and Ctrl-C ends it without a traceback."""

    def main(self, *arguments: object, **more: object) -> object:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a notebook's stream lacks no sign
                stream.reconfigure(errors="replace")
        return super().main(*arguments, **more)

    def invoke(self, context: typer.Context) -> object:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise typer.Exit(128 + signal.SIGINT) from None


app = typer.Typer(
    cls=Course,
    help="Commands of the course. `course COMMAND --help` tells more.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
ROOT = Path(__file__).resolve().parents[2]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def stop(text: object, code: int = 2, command: str = "") -> NoReturn:
    """End the command with a sentence on standard error."""
    print(f"{f'course {command}'.strip()}: {text}", file=sys.stderr, flush=True)
    raise typer.Exit(code) from None


def need_the_course(command: str, root: Path) -> None:
    """Stop where the library was installed without the course, whose files the command works on."""
    if not (root / "exercises").is_dir():
        stop(
            f"`course {command}` works on the course's own files, and beside this installation, in "
            f"{root}, there are none: run it as .venv/bin/course in a clone of the course."
        )
