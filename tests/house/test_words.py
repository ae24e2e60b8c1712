"""The words of the checks: every entry is asked for, is there, and is filled in whole."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

from course_lib.classroom import checks
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.words import Words

ROOT = Path(checks.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def modules() -> list:
    found = pkgutil.walk_packages(checks.__path__, f"{checks.__name__}.")
    return [importlib.import_module(one.name) for one in found]


SAID = [
    pytest.param(module, name, id=f"{module.__name__.removeprefix(checks.__name__ + '.')}.{name}")
    for module in modules()
    for name, value in vars(module).items()
    if isinstance(value, Words) and f"\n{name} = Words(" in Path(module.__file__).read_text()
]


@cache
def texts_of(folder: Path) -> str:
    """The code of an exercise's neighbours and of the frame, without the blocks of words."""
    blocks = re.compile(r'Words\(\s*"""(.*?)"""', re.DOTALL)
    return "".join(
        blocks.sub("", file.read_text()) for file in FILES if file.parent in (folder, ROOT)
    )


def placeholders(text: str) -> set[str]:
    names = [name for _, name, _, _ in Formatter().parse(text) if name]
    return {re.split(r"[.\[]", name)[0] for name in names}


@pytest.mark.parametrize(("module", "name"), SAID)
def test_each_entry_is_asked_for(module, name):
    code = texts_of(Path(module.__file__).parent)
    unused = [entry for entry in getattr(module, name).entries if f'"{entry}"' not in code]
    assert unused == []


@pytest.mark.parametrize(("module", "name"), SAID)
def test_a_finding_fills_in_all_that_its_words_leave_open(module, name):
    says: Words = getattr(module, name)
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in (name, f"{name}.of")):
            continue
        if not isinstance(node.args[0], ast.Constant):
            continue
        entry = node.args[0].value
        assert entry in says.entries, f"{module.__name__}, line {node.lineno}"
        given = {keyword.arg for keyword in node.keywords}
        if None not in given:  # no **about
            assert given == placeholders(says.entries[entry]), f"{entry!r}, line {node.lineno}"


def test_an_entry_is_a_name_and_its_words():
    says = Words("""
        bias n times: The bias was added {n} times:
          every rank added it.
        a copy's debt #1: One
          line.

          And another.
        a copy's debt #2: Two.
    """)
    found = says("bias n times", n=3)
    assert isinstance(found, Finding)
    assert (found.name, found.text) == (
        "bias n times",
        "The bias was added 3 times: every rank added it.",
    )
    assert says.of("a copy's debt #1") == ("a copy's debt", "One line.\nAnd another.")
    assert says.of("a copy's debt #2") == ("a copy's debt", "Two.")


@pytest.mark.parametrize("block", ["no words\n", "a: b\na: c\n"])
def test_what_is_no_entry_is_refused(block):
    with pytest.raises(ValueError, match="not one entry"):
        Words(block)
