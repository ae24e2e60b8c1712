"""A learner's answer as text: whether it is written, and the parts of its cell that a judge runs.

Trial runs below the answer are omitted, because they need the learner's own ranks. From lesson 01
on.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from course_classroom.ranks.carried import DEFINITIONS, carried, definition


@dataclass(frozen=True)
class Answer:
    """The cells that a judge runs, helpers first, and properties of the answer's own cell."""

    name: str
    cells: tuple[str, ...]
    attempted: bool
    free_names: frozenset[str]  # names that the answer uses from other cells
    world_calls: frozenset[str] = frozenset()  # "dist.get_rank()": for the world, not the group
    hashes_text: bool = False  # calls hash() of a string, which differs between processes


def read(name: str, sources: Mapping[str, str]) -> Answer:
    """Return the answer `name`, with the parts of other cells that it needs.

    `sources` maps each name to the last cell that bound it. A cell that cannot be parsed raises a
    SyntaxError.
    """
    if name not in sources:
        return Answer(name, (), False, frozenset())
    own = ast.parse(sources[name])
    given = definition(own, name)
    if given is None:
        raise SyntaxError(f"the cell kept for {name} does not define it at its top level")
    cells = tuple(carried(name, sources).values())
    kept = [ast.parse(cell) for cell in cells]
    used, bound = set().union(*map(_loaded, kept)), set().union(*map(_bound, kept))
    calls = frozenset().union(*map(_world_calls, kept))
    hashes = any(_hashes_text(node) for tree in kept for node in ast.walk(tree))
    return Answer(name, cells, not _is_blank(given), frozenset(used - bound), calls, hashes)


def _is_blank(given: ast.stmt) -> bool:
    """Return True if a body is still empty: `...`, `pass`, or the error that nbgrader inserts."""
    if not isinstance(given, DEFINITIONS):  # a lambda, or a function created by a call
        value = getattr(given, "value", None)
        return isinstance(value, ast.Constant) and value.value in (..., None)
    body = list(given.body)
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:] if isinstance(body[0].value.value, str) else body
    return all(_says_nothing(node) for node in body)


def _says_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value is ...
    if isinstance(node, ast.Raise) and node.exc is not None:
        return ast.unparse(node.exc).startswith("NotImplementedError")
    return isinstance(node, ast.Pass)


def _world_calls(tree: ast.AST) -> set[str]:
    """Return the calls of torch.distributed for rank and size that pass no group."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and not (n.args or n.keywords)]
    asked = {ast.unparse(call) for call in calls}
    return {text for text in asked if text.endswith(("get_rank()", "get_world_size()"))}


def _hashes_text(node: ast.AST) -> bool:
    """Return True for `hash(…)` of a string, or of a bare name that may be a string."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "hash" and node.args):
        return False
    inside = list(ast.walk(node.args[0]))
    texts = [n for n in inside if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    asked = {n.func.id for n in inside if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    named = any(isinstance(n, ast.Attribute) and n.attr == "__name__" for n in inside)
    bare = isinstance(node.args[0], ast.Name)
    return bool(texts or named or bare or asked & {"str", "repr", "format"})


def _loaded(tree: ast.AST) -> set[str]:
    nodes = ast.walk(tree)
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _bound(tree: ast.AST) -> set[str]:
    """Return every name that gets a value anywhere in the cell; an approximation suffices."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, DEFINITIONS):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return found
