"""What each rank is busy with, written down as it goes: who is late or has failed has a name then.

A line when a method's turn begins and one when it ends, with the clock that all processes of a
machine share; rank 0 also writes figures down as soon as they are whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch.distributed as dist

FOLDER = "BENCH_FOLDER"  # the variable that names the folder which ranks and starter share


@contextlib.contextmanager
def doing(name: str) -> Iterator[None]:
    """This rank is at work for a method; what fails in the body fails in its name."""
    _write("begins", name)
    yield
    _write("ends", name)


def made(makers: Mapping[str, Callable], without: Sequence[str]) -> dict:
    """The methods, each made in its own name, but for those that are to be left out."""
    methods = {}
    for name, make in makers.items():
        if name not in without:
            with doing(name):
                methods[name] = make()
    return methods


def finished(rows: Sequence[Mapping], notes: Sequence[str] = ()) -> None:
    """Figures that are whole, from rank 0: they stay, whatever fails after them."""
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
    """(rows, notes) so far; a line that was cut off by an end in the middle is left out."""
    rows, notes = [], []
    for line in _lines(path / "finished"):
        rows += line["rows"]
        notes += line["notes"]
    return rows, notes


def busy(path: Path, rank: int) -> tuple[str | None, float, float]:
    """(the method that a rank is at work for, or None; seconds that it has taken so far, all turns
    together; the clock at the last change)."""
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
