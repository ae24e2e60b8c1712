"""Cells that need a missing package: each shows a sentence and its committed output instead.

A few cells of a few lessons need DeepSpeed, Transformers or bitsandbytes. Without them, such a cell
and the cells that use its variables are skipped, and everything else runs. If all packages are
installed, this module is inactive. Lesson 13 needs most of them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from IPython import get_ipython
from IPython.display import display

from course_classroom.ranks.carried import bound_by, loaded

PACKAGES = ("accelerate", "bitsandbytes", "deepspeed", "tokenizers", "transformers")
ROOT = Path(__file__).resolve().parents[2]
REMEDY = (
    "To install it, run `make setup` in a terminal, in the course's folder (some minutes, about "
    "0.3 GB), and restart this kernel."
)
_NOT_THERE = re.compile(r"ImportError|ModuleNotFoundError|NotInstalled|cannot be imported")
# The wrapper of a cell; its last expression still shows its value.
_WRAPPED = """
try:
    pass
except Exception as _error:
    if not __import__('importlib').import_module({module!r}).skip_if_missing(_error):
        raise
"""
_SKIPPED = "__import__('importlib').import_module({module!r}).skip({package!r})"
_SHOWN = "__import__('sys').displayhook(None)"
_SENT = re.compile(r"--(push|pull|with)[ =](\S+)")  # the names after `%%extra`
Name = tuple[bool, str]  # whether it is on the ranks, and the variable


def install(shell) -> None:
    """Pass this notebook's cells through a guard if an optional package is missing."""
    absent = frozenset(name for name in PACKAGES if not _is_there(name))
    if absent and _guard(shell) is None:
        guard = Guard(absent)
        shell.ast_transformers.append(guard)
        shell.events.register("pre_run_cell", guard.remember)


class Guard:
    """A guard between a cell and its run, with the names that skipped cells did not define."""

    def __init__(self, absent: frozenset[str]) -> None:
        self.absent = absent
        self.source = ""  # source of the running cell, for finding its committed outputs
        self.made: set[Name] = set()  # names that it defines
        self.lost: dict[Name, str] = {}  # with the missing package

    def remember(self, info) -> None:
        self.source = info.raw_cell

    def visit(self, tree: ast.Module) -> ast.Module:
        """Wrap the cell so that a missing package is recognised, or replace it by a message."""
        on_ranks, body, line = _body(tree)
        sent = {word: names.split(",") for word, names in _SENT.findall(line)}
        self.made = _made(on_ranks, body) | {(False, name) for name in sent.get("pull", ())}
        used = _used(on_ranks, body) | {(True, name) for name in sent.get("with", ())}
        used |= {(False, name) for name in sent.get("push", ())}
        missing = _imported(body) & self.absent
        missing |= {self.lost[name] for name in used & self.lost.keys() - self.made}
        if missing:
            return ast.parse(_SKIPPED.format(module=__name__, package=min(missing)))
        for name in self.made:
            self.lost.pop(name, None)
        return _wrapped(tree)


def skip(package: str) -> None:
    """Report the missing package, and show the cell's committed output."""
    guard = _guard(get_ipython())
    outputs = _committed_outputs(guard.source)
    words = [f"Not run: this cell needs {package}, which is not installed."]
    words += [] if package in guard.lost.values() else [REMEDY]  # only the first of them shows it
    words += ["Below is the output of the cell with that package."] if outputs else []
    print(*words)
    guard.lost.update(dict.fromkeys(guard.made, package))
    for output in outputs:
        if output["output_type"] == "stream":
            print("".join(output["text"]), end="")
        elif "data" in output:
            data = {kind: "".join(text) for kind, text in output["data"].items()}
            display(data, raw=True, metadata=output.get("metadata", {}))


def skip_if_missing(error: BaseException) -> bool:
    """Skip the cell that ended in this error if a missing package caused it."""
    chain: list[BaseException | None] = [error]
    while chain[-1] is not None:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    text = "\n".join(f"{type(one).__name__}: {one}" for one in chain)
    absent = _guard(get_ipython()).absent
    missing = absent.intersection(re.findall(r"\w+", text)) if _NOT_THERE.search(text) else ()
    if missing:
        skip(min(missing))
    return bool(missing)


def _guard(shell) -> Guard | None:
    return next((one for one in shell.ast_transformers if isinstance(one, Guard)), None)


def _wrapped(tree: ast.Module) -> ast.Module:
    frame = ast.parse(_WRAPPED.format(module=__name__))
    statements = tree.body
    if statements and isinstance(statements[-1], ast.Expr):
        shown = ast.parse(_SHOWN).body[0]
        shown.value.args = [statements[-1].value]
        statements[-1] = ast.copy_location(shown, statements[-1])
    if statements:
        frame.body[0].body = statements
    return ast.fix_missing_locations(frame)


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def _body(tree: ast.Module) -> tuple[bool, ast.Module, str]:
    """Return whether the cell runs on ranks, its statements, and the arguments of its magic."""
    match tree.body:
        case [ast.Expr(ast.Call(func=ast.Attribute(attr="run_cell_magic"), args=args))]:
            magic, line, text = (node.value for node in args)
            if magic in ("ranks", "extra"):
                return True, _parsed(text), line
    return False, tree, ""


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # the ranks will report it
        return ast.Module([], [])


def _imported(body: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(body):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def _made(on_ranks: bool, body: ast.Module) -> set[Name]:
    """Return the names that a cell binds, on ranks or not; pushed names count as on ranks."""
    names = bound_by(body.body)
    for node in ast.walk(body):
        if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            names.add(node.optional_vars.id)
    pushed = (word.arg for call in _calls(body, "push") for word in call.keywords if word.arg)
    return {(on_ranks, name) for name in names} | {(True, name) for name in pushed}


def _used(on_ranks: bool, body: ast.Module) -> set[Name]:
    """Return the names that a cell reads, on ranks or not; pulled names count as on ranks."""
    used = {(on_ranks, name) for name in loaded(body)}
    for call in _calls(body, "pull"):
        texts = [one.value for one in call.args if isinstance(one, ast.Constant)]
        used |= {(True, name) for text in texts for name in loaded(_parsed(str(text)))}
    return used


def _calls(body: ast.Module, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node


def _committed_outputs(source: str) -> list[dict]:
    """Return the outputs of the cell with this source in the course's own notebooks."""
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code" and "".join(cell["source"]) == source:
                return cell["outputs"]
    return []
