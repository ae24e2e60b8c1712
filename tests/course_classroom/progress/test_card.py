"""A verdict's card: its sign stays, letters can be read in any theme, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from course_classroom.cli.base import ROOT
from course_classroom.judge import frame
from course_classroom.judge.card import card, in_html
from course_classroom.progress.log import MARKS, NOT_ATTEMPTED, RIGHT, WRONG

PAGES = sorted(ROOT.glob("exercises/*/*.ipynb"))


def test_a_sign_and_a_line_tell_what_a_colour_tells_too():
    cards = {outcome: card(outcome, f"{mark} f", "") for outcome, mark in MARKS.items()}
    for outcome, html in cards.items():
        assert f"<strong>{MARKS[outcome]} f</strong>" in html
    lines = [re.search(r"border-left: 4px (\w+) (#\w+)", html).groups() for html in cards.values()]
    assert len({line for line, _ in lines}) == len(cards)
    colours = {outcome: colour for outcome, (_, colour) in zip(cards, lines, strict=True)}
    assert len({colours[one] for one in (NOT_ATTEMPTED, WRONG, RIGHT)}) == 3


def test_letters_keep_the_colour_of_the_theme():
    """A ground of a tenth of a colour lets the theme's own contrast stand."""
    for outcome in MARKS:
        style = re.search(r'style="(.*?)"', card(outcome, "f", ""))[1]
        assert "color:" not in style.replace("background-color:", "")
        ground = re.search(r"rgba\(\d+, \d+, \d+, (0\.\d+)\)", style)
        assert ground is None or float(ground[1]) <= 0.15


def test_code_is_shown_as_code_and_nothing_else_is_believed():
    assert in_html("a `%%ranks` b") == "a <code>%%ranks</code> b"
    assert in_html("`a < b` & `<b>`") == "<code>a &lt; b</code> &amp; <code>&lt;b&gt;</code>"
    assert in_html("one ` alone\nanother `") == "one ` alone\nanother `"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_right_answer_leads_to_the_next_exercise_and_to_its_lesson(path: Path, monkeypatch):
    monkeypatch.chdir(path.parent)
    html = frame.Verdict(path.stem, frame.RIGHT, "", "yes", 1, 1)._repr_html_()
    *onward, back = re.findall(r'<a href="([^"]+)">([^<]+)</a>', html)
    for target, _ in (*onward, back):
        assert (path.parent / unquote(target.partition("#")[0])).is_file(), target
    lesson = path.parent.name[:2]
    page, _, cell = back[0].partition("#cell-id=")
    assert back[1] == f"Back to lesson {lesson}" and f"/{lesson}_" in page
    assert f'"id": "{cell}"' in (path.parent / page).read_text(encoding="utf-8")
    every = [(number, one.name) for number, ones in frame.lessons().items() for one in ones]
    after = every[every.index((lesson, path.stem)) + 1 :][:1]
    for number, name in after:  # none after the last exercise of all
        wanted = f"{name}.ipynb" if number == lesson else f"../../notebooks/{number}_"
        assert onward[0][0].startswith(wanted) and onward[0][1].startswith("Next: ")
    assert len(onward) == len(after)


def test_other_answers_and_other_pages_have_no_links(monkeypatch, tmp_path):
    monkeypatch.chdir(PAGES[0].parent)
    assert "href" not in frame.Verdict(PAGES[0].stem, frame.WRONG, "", "no", 0, 1)._repr_html_()
    monkeypatch.chdir(ROOT / "notebooks")
    assert "href" not in frame.Verdict(PAGES[0].stem, frame.RIGHT, "", "yes", 1, 1)._repr_html_()
