"""Plain English wherever a person reads: bans, punctuation, first words, what-clauses, connectives.

CONTRIBUTING has the counts of each rule at the beginning and today.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import plain_english

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("course_lib", "course_classroom", "course_lessons")
LESSONS = sorted(ROOT.glob("notebooks/*.ipynb"))
DOCS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for path in sorted(ROOT.glob("docs/*.md")) if path.stem != "then_and_now"),
]
PAGES = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.md"))]
CODE = [
    path
    for name in (*PACKAGES, "tools", "benchmarks")
    for path in sorted((ROOT / name).rglob("*.py"))
]
# Regular expressions, YAML and programs in strings, which the rules take for sentences.
NO_PROSE = {
    "course_classroom/doctor/build_tools.py",
    "course_lessons/lesson_15/mfu_of_log.py",
    "course_lib/peers/launchers/commands.py",
    "course_lib/peers/launchers/failures.py",
    "tools/bootstrap/failures.py",
    "tools/bootstrap/tasks.py",
    "tools/pins.py",
}


def found(paths: list[Path]) -> list[tuple]:
    return [
        (path.relative_to(ROOT).as_posix(), text.line, *habit)
        for path in paths
        for text in plain_english.texts(path)
        for habit in plain_english.habits(text)
        if text.kind != "message" or path.relative_to(ROOT).as_posix() not in NO_PROSE
    ]


@pytest.mark.parametrize(
    "paths", [LESSONS, DOCS, PAGES, CODE], ids=["lessons", "docs", "pages", "code"]
)
def test_no_sentence_has_a_habit_that_makes_it_sound_foreign(paths):
    assert len(paths) > 10
    assert not found(paths)


@pytest.mark.parametrize("path", [*LESSONS, *DOCS], ids=lambda path: path.stem)
def test_things_are_named_and_logic_is_in_words(path):
    words, whats, connectives = plain_english.rates(plain_english.texts(path))
    assert whats <= max(1, 1.5 * words / 1000)
    assert connectives >= 3 * words / 1000 - 1


@pytest.mark.parametrize(
    ("text", "habit"),
    [
        ("The rank owes a sum.", "owe, debt, pay"),
        ("Beside the loss it is alone.", "alone"),
        ("The loss is another one.", "another"),
        ("It has a group of its own.", "of its own"),
        ("Parameters stay whole on each rank.", "whole"),
        ("First: this; then that; and more.", "two colons"),
    ],
)
def test_a_habit_is_found(text, habit):
    names = [name for name, _ in plain_english.habits(plain_english.Text("prose", 1, text))]
    assert habit in names
    first = plain_english.Text("docstring", 1, "Whether the group is there.")
    assert [name for name, _ in plain_english.habits(first)] == ["first word"]
    good = "TP stands for tensor parallelism, because it splits `whole on each` tensor: see {x}."
    assert not [*plain_english.habits(plain_english.Text("prose", 1, good))]
