"""A learner's saved notebook: its exercise, its answers, and its irregularities.

The text is read but never run. Therefore a notebook cannot print its own marks or replace `check`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from course_classroom.grading.handouts import Cell, Handout

EMPTY, NOT_A_NOTEBOOK, WRONG_LESSON = "empty", "not a notebook", "wrong lesson"
MOST_BYTES = 32 << 20  # size limit of a notebook's file, including outputs


class Unreadable(Exception):
    """An error for a file that cannot be graded, with an outcome and a text for the row."""

    def __init__(self, outcome: str, text: str):
        super().__init__(text)
        self.outcome, self.text = outcome, text


class Written(NamedTuple):
    """A cell of the submission, as far as it could be read."""

    kind: str
    source: str
    id: str
    checksum: str


@dataclass
class Reading:
    handout: Handout
    cells: list[Written]
    notes: list[str] = field(default_factory=list)


def read(path: Path, handouts: Sequence[Handout], name: str = "") -> Reading:
    """Read the notebook at `path`, or raise Unreadable; `name` is the file's original name."""
    cells = _cells(_load(path))
    if not any(cell.source.strip() for cell in cells):
        raise Unreadable(EMPTY, "a notebook that contains no text")
    handout = _recognised(cells, handouts, name or path.stem)
    reading = Reading(handout, cells)
    _compare(reading)
    return reading


def answers(reading: Reading, check: Cell) -> dict[str, str]:
    """Return the last `%%ranks` cell that defines each function, as `check` sees it.

    Cells below the check cell count only if no cell above it contains the answer.
    """
    found = _defined(_above(reading, check))
    if check.exercise in found:
        return found
    everywhere = _defined(reading.cells)
    if check.exercise in everywhere:
        reading.notes.append("the answer is below the check cell")
        return everywhere
    plain = [c for c in reading.cells if f"def {check.exercise}(" in c.source]
    if plain:
        reading.notes.append(f"{check.exercise} is in a cell that does not start with %%ranks")
    return found


def plain_cells(reading: Reading, check: Cell) -> list[str]:
    """Return the plain code cells above the check cell, which assign the numbers of an answer."""
    code = [cell.source for cell in _above(reading, check) if cell.kind == "code"]
    return [source for source in code if not source.lstrip().startswith("%%")]


def _above(reading: Reading, check: Cell) -> list[Written]:
    """Return the cells above the check cell, or all cells if there is no check cell."""
    places = [i for i, cell in enumerate(reading.cells) if cell.id == check.id]
    return reading.cells[: places[-1]] if places else reading.cells


def _defined(cells: Sequence[Written]) -> dict[str, str]:
    from course_classroom.ranks.carried import defined_names

    found: dict[str, str] = {}
    for cell in cells:
        magic, _, body = cell.source.lstrip().partition("\n")
        if cell.kind == "code" and magic.split()[:1] == ["%%ranks"]:
            found.update(dict.fromkeys(defined_names(body), body))
    return found


def _load(path: Path) -> list:
    size = path.stat().st_size
    if size == 0:
        raise Unreadable(EMPTY, "an empty file")
    if size > MOST_BYTES:
        raise Unreadable(
            NOT_A_NOTEBOOK,
            f"{size / 1e6:.0f} MB; notebooks of more than {MOST_BYTES / 1e6:.0f} MB are not opened",
        )
    try:
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
        if notebook["nbformat"] != 4:  # read by hand above: importing the library takes a second
            import nbformat

            notebook = nbformat.reads(text, as_version=4)
        return list(notebook["cells"])
    except Exception as error:  # any error that an unknown file causes in the reader
        said = (str(error).splitlines() or [""])[0][:120]
        told = f"it is not a readable notebook ({type(error).__name__}: {said})"
        raise Unreadable(NOT_A_NOTEBOOK, told) from None


def _cells(raw: list) -> list[Written]:
    """Return the cells with their nbgrader ids; if cells share an id, the last one keeps it."""
    found: list[Written] = []
    taken: set[str] = set()
    for cell in reversed(raw):
        if not isinstance(cell, dict):
            continue
        metadata = cell.get("metadata")
        marks = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        marks = marks if isinstance(marks, dict) else {}
        name = str(marks.get("grade_id", ""))
        source = cell.get("source")
        source = "".join(map(str, source)) if isinstance(source, list) else str(source or "")
        kept = "" if name in taken else name
        taken.add(name)
        kind = str(cell.get("cell_type", ""))
        found.append(Written(kind, source, kept, str(marks.get("checksum", ""))))
    return found[::-1]


def _recognised(cells: Sequence[Written], handouts: Sequence[Handout], name: str) -> Handout:
    """Return the exercise that shares the most ids, or the exercise that has the file's name."""
    ids = {cell.id for cell in cells if cell.id}
    shared = {h: len(ids & {cell.id for cell in h.cells}) for h in handouts}
    best = max(shared, key=lambda h: (shared[h], h.name == name), default=None)
    if best is not None and shared[best]:
        return best
    named = [h for h in handouts if h.name.casefold() == name.casefold()]
    if named:
        return named[0]
    told = f"its cells belong to no exercise ({', '.join(sorted(ids)[:3])})"
    raise Unreadable(
        WRONG_LESSON, told if ids else "neither its cells nor its name belong to an exercise"
    )


def _compare(reading: Reading) -> None:
    here: dict[str, Written] = {cell.id: cell for cell in reading.cells if cell.id}
    ours = {cell.id: cell for cell in reading.handout.cells}
    sums = [(here[i].checksum, ours[i].checksum) for i in here.keys() & ours]
    stale = any(all(pair) and len(set(pair)) > 1 for pair in sums)
    unknown = sorted(here.keys() - ours.keys())
    if stale:
        reading.notes.append("made from an earlier version; graded with today's check cells")
    for cell in reading.handout.cells:
        written = here.get(cell.id)
        if not (cell.grade or cell.solution):
            continue
        if written is None:
            reading.notes.append(f"the cell {cell.id} is missing")
            continue
        if cell.grade and written.source.strip() != cell.source.strip() and not stale:
            reading.notes.append(f"the check cell {cell.id} was edited; graded with the original")
        if written.kind != cell.kind:
            reading.notes.append(f"the cell {cell.id} was changed to a {written.kind} cell")
    if unknown:
        named = ", ".join(unknown[:3])
        reading.notes.append(f"cells with ids that do not belong to this exercise: {named}")
    if not here:
        reading.notes.append("its cells have no ids; recognised by the file's name")
