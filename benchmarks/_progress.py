"""The progress of each rank, recorded continuously, so that a late or failed method has a name.

A rank writes a line when a method's turn begins and ends, with the clock that all processes of a
machine share. Rank 0 also writes figures as soon as they are complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch.distributed as dist

FOLDER = "BENCH_FOLDER"  # the variable for the folder that ranks and starter share


@contextlib.contextmanager
def doing(name: str) -> Iterator[None]:
    """Record that this rank works for a method; an error in the body is attributed to it."""
    _write("begins", name)
    yield
    _write("ends", name)


def made(makers: Mapping[str, Callable], without: Sequence[str]) -> dict:
    """Create the methods, each under its own name, except those to omit."""
    methods = {}
    for name, make in makers.items():
        if name not in without:
            with doing(name):
                methods[name] = make()
    return methods


def finished(rows: Sequence[Mapping], notes: Sequence[str] = ()) -> None:
    """Record complete figures from rank 0; they are kept whatever fails later."""
    if dist.get_rank() == 0:
        with (folder() / "finished").open("a") as file:
            file.write(json.dumps({"rows": rows, "notes": notes}) + "\n")


def folder() -> Path:
    return Path(os.environ[FOLDER])


def _write(what: str, name: str) -> None:
    if FOLDER in os.environ:
        with (folder() / f"doing-{dist.get_rank()}").open("a") as file:
            file.write(json.dumps([what, name, time.monotonic()]) + "\n")


def read_finished(path: Path) -> tuple[list[dict], list[str]]:
    """Read (rows, notes) so far; an incomplete last line is ignored."""
    rows, notes = [], []
    for line in _lines(path / "finished"):
        rows += line["rows"]
        notes += line["notes"]
    return rows, notes


def busy(path: Path, rank: int) -> tuple[str | None, float, float]:
    """Return a rank's current method (or None), its seconds so far over all turns, and the clock at
    the last change."""
    name, since, spent = None, 0.0, {}
    for what, who, at in _lines(path / f"doing-{rank}"):
        if what == "ends":
            spent[who] = spent.get(who, 0.0) + at - since
        name, since = (who if what == "begins" else None), at
    if name is None:
        return None, 0.0, since
    return name, spent.get(name, 0.0) + time.monotonic() - since, since


def _lines(path: Path) -> list:
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
