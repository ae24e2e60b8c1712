"""What a notebook under test may not contain, because nbval passes it whatever it does.

A failing `!command`, an unknown magic and the rest of its cell are green under nbval (trap T36),
and a cell that was never executed has nothing its output could be held against.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

LINE_MAGICS = frozenset({"config", "load_ext", "matplotlib", "ranks"})
CELL_MAGICS = frozenset({"extra", "ranks"})  # their bodies are cells too, and read as such
SHELL_MAGICS = frozenset({"!", "sx", "sc", "system", "bash", "sh", "script", "cmd"})


def faults(notebook: Path, *, executed: bool = False) -> list[str]:
    """What is wrong with a notebook, cell by cell as nbval counts them.

    With `executed`, every cell has to have been run when the notebook was saved.
    """
    node = nbformat.read(notebook, as_version=4)
    cells = [cell for cell in node.cells if cell.cell_type == "code"]
    said = []
    for number, cell in enumerate(cells):
        said += [f"cell {number}: {one}" for one in faults_of_source(cell.source)]
        if executed and cell.source.strip() and cell.execution_count is None and runs(cell):
            said.append(f"cell {number}: was never executed, so its output is held against nothing")
    return said


def runs(cell: NotebookNode) -> bool:
    return "nbval-skip" not in cell.metadata.get("tags", [])


def faults_of_source(source: str) -> list[str]:
    """What is wrong with the text of one cell."""
    try:
        tree = ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError as error:
        return [f"is not Python ({error.msg}, line {error.lineno})"]
    return [fault for call in shell_calls(tree) for fault in faults_of_call(*call)]


def shell_calls(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """The calls of IPython's own functions that magics and `!` turn into, with their words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "get_ipython":
                words = [getattr(word, "value", None) for word in node.args]
                yield node.func.attr, [word if isinstance(word, str) else "" for word in words]


def faults_of_call(function: str, words: list[str]) -> list[str]:
    name = words[0] if words else ""
    if function in ("system", "getoutput", "system_piped", "system_raw"):
        return [f"runs a shell command (`{name}`); start the program from Python, with check=True"]
    if function not in ("run_line_magic", "run_cell_magic", "magic"):
        return []
    if not name:
        return ["calls a magic by a name that only the run knows; write %name"]
    sign, known = ("%%", CELL_MAGICS) if function == "run_cell_magic" else ("%", LINE_MAGICS)
    if name in SHELL_MAGICS:
        return [f"runs a shell by {sign}{name}; start the program from Python, with check=True"]
    if name not in known:
        allowed = ", ".join(sorted(known))
        return [f"uses {sign}{name}; in a notebook under test only {allowed} may be used"]
    return faults_of_source(words[2]) if sign == "%%" and len(words) > 2 else []
