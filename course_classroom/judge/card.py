"""A verdict as a card: a colour next to its sign, formatted code, and links to the next step.

The colours differ for colour-blind readers, and text keeps the theme's colour, so a card is
readable in light and dark themes. Lesson 00 shows the first card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from course_classroom.progress.log import NOT_ATTEMPTED, NOT_JUDGED, RIGHT, WRONG

_LINES = {
    NOT_ATTEMPTED: "dotted #767676",
    WRONG: "dashed #d55e00",
    RIGHT: "solid #009e73",
    NOT_JUDGED: "double #767676",
}
_GROUNDS = {WRONG: "rgba(213, 94, 0, 0.1)", RIGHT: "rgba(0, 158, 115, 0.12)"}
_CODE = re.compile(r"`([^`\n]+)`")

Link = tuple[str, str]  # words and target


def card(outcome: str, head: str, text: str, links: Iterable[Link] = ()) -> str:
    """Return the HTML of a verdict."""
    ground = f"background-color: {_GROUNDS[outcome]}; " if outcome in _GROUNDS else ""
    style = f"border-left: 4px {_LINES[outcome]}; {ground}padding: 0.3em 0.8em"
    onward = " · ".join(f'<a href="{escape(to)}">{in_html(words)}</a>' for words, to in links)
    return (
        f'<div style="{style}"><strong>{in_html(head)}</strong>'
        f'<div style="white-space: pre-wrap">{in_html(text)}</div>'
        + (f"<div>{onward}</div>" if onward else "")
        + "</div>"
    )


def in_html(text: str) -> str:
    """Return text as HTML, with backticked parts as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def onward(name: str, lessons: Mapping[str, Iterable], folder: Path) -> list[Link]:
    """Return links from an exercise's page in `folder` to the next exercise and the lesson."""
    if not (folder / f"{name}.ipynb").exists():
        return []  # a different page, such as the lesson itself
    lesson, pages = folder.name[:2], folder.parent.parent / "notebooks"
    exercises = list(lessons.get(lesson, ()))
    place = [one.name for one in exercises].index(name) + 1
    links = [(f"Next: {one.title}", f"{one.name}.ipynb") for one in exercises[place:][:1]]
    if not links and (after := _page(pages, f"{int(lesson) + 1:02d}")):
        links.append((f"Next: lesson {after[:2]}", f"../../notebooks/{after}"))
    if here := _page(pages, lesson):
        # The table of exercises at the end of the lesson.
        links.append((f"Back to lesson {lesson}", f"../../notebooks/{here}#cell-id=exercises"))
    return links


def _page(pages: Path, lesson: str) -> str:
    return next((path.name for path in sorted(pages.glob(f"{lesson}_*.ipynb"))), "")
