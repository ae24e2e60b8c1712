"""Where a tree of files shows an answer of solutions/: as code, whatever its layout, or as text.

An answer is what stands between the marks of a solution: the bodies of its functions and the
values of its dictionaries. A lesson may say what a body of a few words says.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
SHORT = 20  # characters: `return dy` and `return x.view_as(x)` stand in lesson 03, too
FEW = 60  # characters of text: less may come about by chance


class Answer(NamedTuple):
    """One answer: the exercise, and the statements or the lines that give it."""

    exercise: str
    parts: tuple[str, ...]


def code_of(source: str) -> str:
    """A cell without the lines that are IPython's own."""
    lines = source.splitlines()
    return "\n".join("" if line.lstrip()[:1] in ("%", "!") else line for line in lines)


def solved_cells(solutions: Path) -> Iterator[tuple[str, str]]:
    """The exercise and the code of each cell that holds an answer."""
    for path in sorted(solutions.glob("*/*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and BEGIN in source:
                yield path.stem, code_of(source)


def regions(code: str) -> list[tuple[int, int]]:
    """The first and the last line of each answer."""
    lines = code.splitlines()
    begins = [i for i, line in enumerate(lines, 1) if BEGIN in line]
    ends = [i for i, line in enumerate(lines, 1) if END in line]
    return list(zip(begins, ends, strict=True))


def as_statements(solutions: Path) -> list[Answer]:
    """The whole body of every function with an answer in it, and every dictionary of numbers."""
    found = []
    for exercise, code in solved_cells(solutions):
        inside = {n for begin, end in regions(code) for n in range(begin, end + 1)}
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.FunctionDef) and any(s.lineno in inside for s in node.body):
                found.append(Answer(exercise, _statements(node.body)))
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == exercise:
                found.append(Answer(exercise, (ast.unparse(node),)))
    return [one for one in found if sum(map(len, one.parts)) >= SHORT]


def as_lines(solutions: Path) -> list[Answer]:
    """The lines of every answer."""
    found = []
    for exercise, code in solved_cells(solutions):
        for begin, end in regions(code):
            found.append(Answer(exercise, _lines("\n".join(code.splitlines()[begin : end - 1]))))
    return [one for one in found if sum(map(len, one.parts)) >= FEW]


def shown(tree: Path, solutions: Path) -> list[tuple[str, str]]:
    """Each file below `tree` with the exercise whose answer it shows."""
    by_code, by_text = as_statements(solutions), as_lines(solutions)
    found = set()
    for path in sorted(path for path in tree.rglob("*") if path.is_file()):
        for text in _texts(path):
            lines = "\n".join(("", *_lines(text), ""))
            exercises = {one.exercise for one in by_text if "\n".join(one.parts) in lines}
            exercises |= _in_code(text, by_code)
            found |= {(path.relative_to(tree).as_posix(), one) for one in exercises}
    return sorted(found)


def _in_code(text: str, answers: Iterable[Answer]) -> set[str]:
    try:
        nodes = list(ast.walk(ast.parse(code_of(text))))
    except (SyntaxError, ValueError):
        return set()  # prose, or another language: its lines are looked at
    runs = [getattr(node, part, None) for node in nodes for part in ("body", "orelse", "finalbody")]
    written = [_statements(run) for run in runs if isinstance(run, list) and run]
    return {one.exercise for one in answers if any(_holds(run, one.parts) for run in written)}


def _holds(run: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    last = len(run) - len(parts)
    return any(run[at : at + len(parts)] == parts for at in range(last + 1))


def _statements(body: Iterable[ast.AST]) -> tuple[str, ...]:
    """Without a docstring, and as Python itself would lay them out."""
    kept = [
        one
        for one in body
        if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
    ]
    return tuple(ast.unparse(one) for one in kept)


def _lines(text: str) -> tuple[str, ...]:
    stripped = (line.strip() for line in text.splitlines())
    return tuple(line for line in stripped if line and not line.startswith("#"))


def _texts(path: Path) -> Iterator[str]:
    """The file's text; of a notebook that of each cell and of each output."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return  # a picture
    if path.suffix == ".ipynb":
        yield from _strings(json.loads(text))
    else:
        yield text


def _strings(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if not str(name).startswith("image/"):
                yield from _strings(value)
    elif isinstance(node, list):
        if all(isinstance(one, str) for one in node):
            yield "".join(node)
        else:
            for one in node:
                yield from _strings(one)
    elif isinstance(node, str):
        yield node
