"""The pages of the checks: every entry is asked for, is there, and is filled in whole."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

import course_classroom.judge
import course_lessons
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import exercises
from course_classroom.judge.words import Page, Words

PACKAGES = (course_classroom.judge, course_lessons)
JUDGE, LESSONS = (Path(package.__file__).parent for package in PACKAGES)
FILES = sorted((*JUDGE.rglob("*.py"), *LESSONS.rglob("*.py")))
PAGES = sorted((*JUDGE.rglob("*.md"), *LESSONS.glob("*/*.md")))


def modules() -> list:
    return [
        importlib.import_module(one.name)
        for package in PACKAGES
        for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]


SAID = [
    pytest.param(module, name, id=f"{module.__name__.partition('.')[2]}.{name}")
    for module in modules()
    for name, value in vars(module).items()
    if isinstance(value, Words) and value.path.stem in Path(module.__file__).read_text()
]


@cache
def texts_of(folder: Path) -> str:
    """The code of an exercise's neighbours and of the frame."""
    return "".join(file.read_text() for file in FILES if file.parent in (folder, JUDGE))


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
- **bias n times**: The bias was added {n} times: every rank added it.
- **a copy's debt #1**: One line.

  And another.
- **a copy's debt #2**: Two.
""")
    found = says("bias n times", n=3)
    assert isinstance(found, Finding)
    assert (found.name, found.text) == (
        "bias n times",
        "The bias was added 3 times: every rank added it.",
    )
    assert says.of("a copy's debt #1") == ("a copy's debt", "One line.\nAnd another.")
    assert says.of("a copy's debt #2") == ("a copy's debt", "Two.")


@pytest.mark.parametrize("findings", ["no item\n", "- no words\n", "- **a**: b\n- **a**: c\n"])
def test_what_is_no_entry_is_refused(findings):
    with pytest.raises(ValueError, match="not one entry"):
        Words(findings)


def test_the_first_entry_that_holds_is_raised_for_the_first_rank_of_which_one_does():
    says = Words("- **low**: Rank {rank} has {got}{more}.\n- **high**: Rank {rank} is high.")
    looks = {"low": lambda r: r["got"] < 1, "high": lambda r: r["got"] > 2}
    says.refuse_each([{"got": 1}, {"got": 2}], looks)
    with pytest.raises(Finding) as met:
        says.refuse_each([{"got": 1}, {"got": 3}, {"got": 0}], looks, more="")
    assert (met.value.name, met.value.text) == ("high", "Rank 1 is high.")
    with pytest.raises(Finding, match="Rank 0 has 7, at least"):  # what is said goes first
        says.refuse_each([{"got": 0}], looks, got=7, more=", at least")
    says.refuse({"low": [], "high": False})
    with pytest.raises(Finding, match="Rank 5 is high"):
        says.refuse({"low": 0, "high": "yes"}, rank=5)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_read_by_a_check_and_lists_nothing_else(path):
    asked = f'Page(__file__, "{path.stem}")'
    assert sum(asked in file.read_text() for file in path.parent.glob("*.py")) == 1
    page = Page(str(path), path.stem)
    sections = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
    assert set(sections) <= {"Hints", "Findings"} and sections == sorted(sections, reverse=True)
    assert page.about["title"] and (page.entries or page.about["hints"])


@pytest.mark.parametrize("exercise", exercises().values(), ids=lambda one: one.name)
def test_an_exercise_has_a_page_with_all_that_it_says(exercise):
    (path,) = [path for path in PAGES if path.stem == exercise.name]
    text = path.read_text()
    assert text.startswith(f"# {exercise.title}\n\n*{exercise.points} point")
    assert exercise.points and exercise.when_right in text and exercise.hints
    assert [hint for hint in exercise.hints if f"\n- {hint}\n" not in text] == []
