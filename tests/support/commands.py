"""A command of `course`, called in this process; programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import typer

from course_classroom.cli import app

ROOT = Path(__file__).resolve().parents[2]


def called(capsys, command: str, *words: object) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)"""
    try:
        typer.main.get_command(app)([command, *map(str, words)])
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def python(
    *words: object, before: tuple = (), env: dict | None = None, timeout: float = 280, **how
):
    """`python WORDS` with this repository's code, `before` being a program that starts it; ended,
    whatever its exit code."""
    return subprocess.run(
        [*before, sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **how,
    )


def until(holds: Callable[[], object], seconds: float = 60) -> None:
    """Wait for something to come about, within so many seconds."""
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, "it did not come about"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may still be on the list."""
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def gone(*pids: int) -> bool:
    """Whether the processes end by themselves; if not, they are ended here."""
    with suppress(AssertionError):
        until(lambda: not any(map(alive, pids)), 15)
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        psutil.Process(pid).kill()
    return not left
