"""Parts that all commands share: the typer app, the course's folder and the --json option.

Exit code 0 means success, 1 findings or a failure, and 2 incorrect usage. With --json, standard
output contains only one JSON document.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup


class Course(TyperGroup):
    """Command group that prints in any terminal and ends on Ctrl-C without a traceback."""

    def main(self, *arguments: object, **more: object) -> object:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a notebook's stream has every character
                stream.reconfigure(errors="replace")
        return super().main(*arguments, **more)

    def invoke(self, context: typer.Context) -> object:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise typer.Exit(128 + signal.SIGINT) from None


app = typer.Typer(
    cls=Course,
    help="Commands of the course. `course COMMAND --help` explains each of them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
ROOT = Path(__file__).resolve().parents[2]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON document to standard output.")]


def stop(text: object, code: int = 2, command: str = "") -> NoReturn:
    """Print a message to standard error and end the command."""
    print(f"{f'course {command}'.strip()}: {text}", file=sys.stderr, flush=True)
    raise typer.Exit(code) from None


def need_the_course(command: str, root: Path) -> None:
    """Exit with an error if the course files that the command needs are not installed."""
    if not (root / "exercises").is_dir():
        stop(
            f"`course {command}` needs the files of the course, but {root} does not contain them. "
            "Run it as .venv/bin/course in a clone of the course."
        )
