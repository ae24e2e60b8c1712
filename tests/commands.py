"""A command of `course`, called in this process."""

from __future__ import annotations

import typer

from course_lib.cli import app


def called(capsys, command: str, *words: object) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)"""
    try:
        typer.main.get_command(app)([command, *map(str, words)])
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    printed = capsys.readouterr()
    return code, printed.out, printed.err
