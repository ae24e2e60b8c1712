"""What the course hands out: lessons, appendices, exercises; how versions of one are compared.

Running a lesson and saving it changes outputs and counts, which is no answer: what counts is what
the cells say, and in which order. Outputs that follow a prediction are left out, so that a learner
predicts before the answer; pictures of a derivation stay, as nothing in them was measured.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ASKS = ("predict(",)
# Drawn from the notation or from the algorithm alone, before anything is run.
SCHEMATIC = ("statement(", "f_and_g(", "parameter_life(", "ring_steps(", "sliders.ring(")


@dataclass(frozen=True)
class Item:
    """One notebook; its path is the same in the course and in a workspace."""

    path: str

    @property
    def lesson(self) -> str:
        """The number of a lesson and of its exercises, the letter of an appendix, E1 of a part."""
        name = PurePosixPath(self.path).parts[1]
        return name.split("_")[1].upper() if self.is_appendix else name[:2]

    @property
    def letter(self) -> str:
        """Of an appendix in several parts what they have in common: E of E1; else the lesson."""
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
    """How a lesson is called by its number, or an appendix by its letter."""
    return f"lesson {lesson}" if lesson.isdigit() else f"appendix {lesson}"


def capital(text: str) -> str:
    """The text as a sentence begins; an appendix keeps its letter."""
    return text[:1].upper() + text[1:]


def items(root: Path) -> list[Item]:
    """Every lesson, every appendix, then every exercise, in the order of the course."""
    found = [
        *sorted(root.glob("notebooks/[0-9][0-9]_*.ipynb")),
        *sorted(root.glob("notebooks/appendix_[a-z]*_*.ipynb")),
        *sorted(root.glob("exercises/[0-9][0-9]_*/*.ipynb")),
    ]
    return [Item(path.relative_to(root).as_posix()) for path in found]


def content(root: Path, item: Item) -> bytes:
    """The bytes of a notebook as a learner gets it: without outputs below a prediction."""
    return without_answers((root / item.path).read_bytes())


def first_lesson(folder: Path) -> str:
    """The lesson to open first, as a path; empty where there is none."""
    found = sorted((folder / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    return f"notebooks/{found[0].name}" if found else ""


def title(root: Path, item: Item) -> str:
    """The heading that a notebook begins with, without its number or letter; else its name."""
    try:
        cell = json.loads((root / item.path).read_bytes())["cells"][0]
        heading = "".join(cell["source"]).splitlines()[0]
    except (OSError, ValueError, LookupError, TypeError):
        heading = ""
    heading = heading.lstrip("# ").removeprefix("Appendix ")
    return heading.removeprefix(f"{item.lesson} · ") or item.name


@dataclass(frozen=True)
class Version:
    """What a notebook was at one time: its bytes, and what its cells say."""

    whole: str
    cells: str  # empty where it is no notebook


def version(data: bytes) -> Version:
    """The digests of a notebook's text."""
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
    """The notebook without the outputs below its first prediction; else the same bytes."""
    try:
        notebook = json.loads(data)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        asks = [_calls(cell, ASKS) for cell in cells]
        below = cells[asks.index(True) + 1 :]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return data  # no notebook, or none that asks
    for cell in below:
        if not _calls(cell, SCHEMATIC):
            cell["outputs"], cell["execution_count"] = [], None
    text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
    return text.encode() + b"\n"


def _calls(cell: dict, names: tuple[str, ...]) -> bool:
    return any(line.startswith(names) for line in "".join(cell["source"]).splitlines())
