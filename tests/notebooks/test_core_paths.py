"""Who leaves out the sections beside the core path stops nowhere: no cell of it needs their names.

Read from the text of the lessons alone: which names a cell defines and which it uses. What a
`%%ranks` cell does happens on the ranks and every other cell's work in the notebook's own process,
so the two are kept apart; an expression that is pulled is read on the ranks, and so is a cell that
other ranks run too.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest

from course_classroom.ranks.carried import wanted_by

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SIDES = KERNEL, RANKS, EXTRA = "the notebook", "the ranks", "the extra ranks"
SENT = re.compile(r"--(push|pull|with) (\S+)")
HEADING = re.compile(r"^(#{1,4}) (.+)$", re.M)
CORE_PATH = re.compile(r"^\*\*Core path\*\*: all sections but (.+?)(?:;|$)", re.M)


class Cell(NamedTuple):
    """A code cell: its first line, what it defines and uses where, whether it may be skipped."""

    head: str
    beside: bool
    defines: dict[str, set[str]]
    uses: dict[str, set[str]]


def beside_the_path(cells: list) -> set[str]:
    """The headings that the lesson's first cell names as beside the core path."""
    found = CORE_PATH.search(cells[0].source)
    return set(re.findall(r"\*([^*]+)\*", found[1])) if found else set()


def is_beside(path: list[str], skipped: set[str]) -> bool:
    return any(heading in skipped for heading in path)


def code_cells(cells: list) -> Iterator[Cell]:
    skipped, path = beside_the_path(cells), {}
    for cell in cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"^```.*?^```", "", cell.source, flags=re.M | re.S)
            for marks, heading in HEADING.findall(prose):
                path = {depth: name for depth, name in path.items() if depth < len(marks)}
                path[len(marks)] = heading.strip()
        elif cell.source.strip():
            defines, uses = names_of(cell.source)
            yield Cell(
                cell.source.splitlines()[0], is_beside([*path.values()], skipped), defines, uses
            )


def names_of(source: str) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """What a cell defines and uses, in the notebook's process, on the ranks and on extra ones."""
    head = source.splitlines()[0]
    side = {"%%ranks": RANKS, "%%extra": EXTRA}.get(head.split()[0] if head.strip() else "", KERNEL)
    text = "\n".join("" if line.startswith("%") else line for line in source.splitlines())
    defines: dict[str, set[str]] = {one: set() for one in SIDES}
    uses: dict[str, set[str]] = {one: set() for one in SIDES}
    defines[side], uses[side] = globals_of(text)
    for expression in pulled(text):
        uses[RANKS] |= globals_of(expression)[1]
    uses[RANKS] |= asked_for(text)
    if side == EXTRA:
        sent = {word: set(names.split(",")) for word, names in SENT.findall(head)}
        defines[EXTRA] |= sent.get("with", set()) | sent.get("push", set())
        uses[RANKS] |= sent.get("with", set())
        uses[KERNEL] |= sent.get("push", set())
        defines[KERNEL] |= sent.get("pull", set())
    return defines, uses


def globals_of(text: str) -> tuple[set[str], set[str]]:
    """The names that a piece of code defines at its top, and the ones that it reads from there."""
    top = symtable.symtable(text, "cell", "exec")
    defined = {
        symbol.get_name()
        for symbol in top.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }
    return defined, wanted_by(text)


def pulled(text: str) -> Iterator[str]:
    """The expressions that a cell asks the ranks for; those put together at run time are left."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "pull" and node.args:
            asked = node.args[0]
            if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
                yield asked.value


def asked_for(text: str) -> set[str]:
    """The names whose cells a cell runs on other ranks too (`cell_of`): of its texts, the names."""
    nodes = [*ast.walk(ast.parse(text))]
    if not any(
        isinstance(node, ast.Call) and getattr(node.func, "id", "") == "cell_of" for node in nodes
    ):
        return set()
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return {one for one in texts if isinstance(one, str) and one.isidentifier()}


def missing(cells: list) -> list[str]:
    """Where a core-path cell uses a name that a section beside the path was the last to define."""
    last: dict[tuple[str, str], bool] = {}  # (side, name) → whether a cell beside the path made it
    said = []
    for number, cell in enumerate(code_cells(cells)):
        for side in SIDES:
            if not cell.beside:
                for name in sorted(cell.uses[side] - cell.defines[side]):
                    if last.get((side, name)):
                        said.append(f"code cell {number} ({cell.head}): {name}, on {side}")
            for name in cell.defines[side]:
                last[side, name] = cell.beside
    return said


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_core_path_needs_no_name_of_a_section_beside_it(notebook):
    cells = nbformat.read(notebook, as_version=4).cells
    assert missing(cells) == []
