"""Lessons, appendices and exercises that the course hands out, and their versions.

Running and saving a lesson changes outputs and execution counts, so versions are compared by the
cells' source and order. Outputs below a prediction are removed, so that learners predict before
they see the answer; pictures of a derivation stay, because nothing in them was measured.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ASKS = ("predict(",)
# Drawn only from the notation or the algorithm, before anything runs.
SCHEMATIC = ("statement(", "f_and_g(", "parameter_life(", "ring_steps(", "sliders.ring(")


@dataclass(frozen=True)
class Item:
    """A notebook; its path is the same in the course and in a workspace."""

    path: str

    @property
    def lesson(self) -> str:
        """Return a lesson's number (also for its exercises), or an appendix's letter or part."""
        name = PurePosixPath(self.path).parts[1]
        return name.split("_")[1].upper() if self.is_appendix else name[:2]

    @property
    def letter(self) -> str:
        """Return the letter that an appendix's parts share (E for E1), or a lesson's number."""
        return self.lesson.rstrip("0123456789") if self.is_appendix else self.lesson

    @property
    def is_appendix(self) -> bool:
        return self.path.startswith("notebooks/appendix_")

    @property
    def is_exercise(self) -> bool:
        return self.path.startswith("exercises/")

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).stem

    def __str__(self) -> str:
        return f"exercise {self.name}" if self.is_exercise else called(self.lesson)

    @property
    def short(self) -> str:
        return self.name if self.is_exercise else self.path


def called(lesson: str) -> str:
    """Return the name of a lesson by its number, or of an appendix by its letter."""
    return f"lesson {lesson}" if lesson.isdigit() else f"appendix {lesson}"


def capital(text: str) -> str:
    """Return the text with a capital first letter; an appendix keeps its letter."""
    return text[:1].upper() + text[1:]


def items(root: Path) -> list[Item]:
    """Return every lesson, every appendix, then every exercise, in the order of the course."""
    found = [
        *sorted(root.glob("notebooks/[0-9][0-9]_*.ipynb")),
        *sorted(root.glob("notebooks/appendix_[a-z]*_*.ipynb")),
        *sorted(root.glob("exercises/[0-9][0-9]_*/*.ipynb")),
    ]
    return [Item(path.relative_to(root).as_posix()) for path in found]


def content(root: Path, item: Item) -> bytes:
    """Return the bytes of a learner's notebook, which has no outputs below its first prediction."""
    return without_answers((root / item.path).read_bytes())


def first_lesson(folder: Path) -> str:
    """Return the path of the first lesson, or an empty string if there is none."""
    found = sorted((folder / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    return f"notebooks/{found[0].name}" if found else ""


def title(root: Path, item: Item) -> str:
    """Return a notebook's first heading without number or letter, or its name without one."""
    try:
        cell = json.loads((root / item.path).read_bytes())["cells"][0]
        heading = "".join(cell["source"]).splitlines()[0]
    except (OSError, ValueError, LookupError, TypeError):
        heading = ""
    heading = heading.lstrip("# ").removeprefix("Appendix ")
    return heading.removeprefix(f"{item.lesson} · ") or item.name


@dataclass(frozen=True)
class Version:
    """A version of a notebook: digests of its bytes and of its cells' source."""

    whole: str
    cells: str  # empty if it is not a notebook


def version(data: bytes) -> Version:
    """Return the digests of a notebook's bytes and of its cells."""
    return Version(hashlib.sha256(data).hexdigest(), _cells(data))


def _cells(data: bytes) -> str:
    try:
        said = [
            [cell["cell_type"], source, *(cell["metadata"].get(k) for k in ("tags", "nbgrader"))]
            for cell in json.loads(data)["cells"]
            # JupyterLab adds an empty cell when the last one is run.
            if (source := "".join(cell["source"])).strip()
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def without_answers(data: bytes) -> bytes:
    """Remove the outputs below a notebook's first prediction; return other bytes unchanged."""
    try:
        notebook = json.loads(data)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        asks = [_calls(cell, ASKS) for cell in cells]
        below = cells[asks.index(True) + 1 :]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return data  # not a notebook, or one without predictions
    for cell in below:
        if not _calls(cell, SCHEMATIC):
            cell["outputs"], cell["execution_count"] = [], None
    text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
    return text.encode() + b"\n"


def _calls(cell: dict, names: tuple[str, ...]) -> bool:
    return any(line.startswith(names) for line in "".join(cell["source"]).splitlines())
