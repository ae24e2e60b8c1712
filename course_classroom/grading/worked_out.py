"""The numbers that answer a thought question, computed from the notebook's text.

Only the statements on which they depend run, in a separate process with a time limit. A number may
be written as an expression, such as a product, which is untrusted code.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path

from course_classroom.ranks import confine

LIMIT = 30.0  # seconds; on a busy machine even an import takes some
_LONGEST = 60  # characters of a value that is not a number


class Shown:
    """A value that is not a number, in the form in which a verdict shows it."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def worked_out(
    name: str, cells: Sequence[str], folder: Path, limit: float = LIMIT
) -> tuple[object, str]:
    """Return the value of the variable `name` after the cells, and a note if that failed."""
    needed = leading_to(name, cells)
    if not needed:
        return None, ""
    house = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [house, os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "course_classroom.grading.worked_out"],
            input=json.dumps({"name": name, "cells": needed, "folder": str(folder)}),
            env={**os.environ, "PYTHONPATH": path},
            cwd="/",  # so that no file of the folder can replace a module of Python
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        told = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        why = "an endless loop, or a busy machine"
        return None, f"computing {name} had not ended after {limit:g} s ({why})"
    except ValueError:
        return None, f"computing {name} ended its process"
    return _back(told["value"]), told["note"]


def leading_to(name: str, cells: Sequence[str]) -> list[str]:
    """Return the top-level statements of each cell on which `name` depends, in order."""
    trees = [(cell, tree.body) for cell in cells if (tree := _parsed(cell)) is not None]
    needed, grew = {name}, True
    while grew:
        kept = [[n for n in body if _touches(n, needed)] for _, body in trees]
        used = set().union(*(_loaded(n) for nodes in kept for n in nodes))
        grew = not used <= needed
        needed |= used
    parts = zip(trees, kept, strict=True)
    return ["\n".join(ast.unparse(n) for n in nodes) for _, nodes in parts if nodes]


def _parsed(cell: str) -> ast.Module | None:
    """Parse a plain cell as Python, without IPython's magics and shell commands."""
    lines = ["" if line.lstrip()[:1] in ("%", "!") else line for line in cell.splitlines()]
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _touches(node: ast.stmt, names: set[str]) -> bool:
    """Return True if a statement may assign one of the names or change its value."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load) and part.id in names:
            return True
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and part.name in names:
            return True
        if isinstance(part, ast.alias) and (part.asname or part.name).split(".")[0] in names:
            return True
        stored = isinstance(part, ast.Subscript) and not isinstance(part.ctx, ast.Load)
        method = isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)
        if (stored and base_of(part.value) in names) or (method and base_of(part.func) in names):
            return True
    return False


def base_of(node: ast.expr) -> str:
    """Return the name at the start of a chain of attributes and items, or an empty string."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _loaded(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _back(told: dict) -> object:
    kind, it = told["kind"], told["it"]
    if kind == "dict":
        return {ast.literal_eval(key): _back(value) for key, value in it}
    if kind == "blank":
        return ...
    return float(it) if kind == "number" else (it if kind == "text" else Shown(it))


def _described(value: object) -> dict:
    """Describe a value of any type in a form that another process can read."""
    try:
        if isinstance(value, Mapping):
            pairs = [[repr(k), _described(v)] for k, v in value.items() if _is_literal(k)]
            return {"kind": "dict", "it": pairs}
        if value is None or value is ...:
            return {"kind": "blank", "it": ""}
        single = getattr(value, "item", None)  # a tensor or array with a single number
        if callable(single) and getattr(value, "ndim", 0) == 0:
            value = single()
        if isinstance(value, Real) and not isinstance(value, bool):
            return {"kind": "number", "it": repr(float(value))}
        kind = "text" if isinstance(value, str) else "other"
        return {"kind": kind, "it": (value if kind == "text" else repr(value))[:_LONGEST]}
    except Exception:  # a tensor without data, a number beyond floats, a failing object
        return {"kind": "other", "it": f"of type {type(value).__name__}"}


def _is_literal(key: object) -> bool:
    try:
        return ast.literal_eval(repr(key)) == key
    except (ValueError, SyntaxError):
        return False


def main() -> None:
    """Run the cells from standard input, and write the value to the original standard output."""
    asked = json.load(sys.stdin)
    confine.from_environment()
    os.chdir(asked["folder"])
    sys.path.append(asked["folder"])
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the cells' own output must not reach the answer
    space: dict = {"__name__": "__main__"}
    note = ""
    for cell in asked["cells"]:
        try:
            exec(compile(cell, "<cell>", "exec"), space)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"[:200]
            note = f"the cell that assigns {asked['name']} stops with {said}"
    with answer:
        json.dump({"value": _described(space.get(asked["name"])), "note": note}, answer)


if __name__ == "__main__":
    main()
