"""The style that `course lab` gives to figures in a dark theme: served, and still to be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("jupyterlab")

from course_lib.classroom.workspace.server import STYLE, CourseServer
from course_lib.cli.lab import lab_options
from course_lib.figures.colours import CARD, INK, QUIET

CSS = (STYLE / "custom.css").read_text()


def luminance(colour: str, factor: float) -> float:
    """Relative luminance after WCAG 2, of a colour that is multiplied by the factor."""
    parts = [int(colour[i : i + 2], 16) / 255 * factor for i in (1, 3, 5)]
    red, green, blue = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_jupyterlab_is_told_to_load_it_and_finds_ours_first():
    assert "--LabApp.custom_css=True" in lab_options([])
    first, *others = CourseServer().static_custom_path
    assert Path(first) / "custom.css" == STYLE / "custom.css" and others


@pytest.mark.parametrize("ink", [INK, QUIET])
def test_a_dimmed_card_glares_less_and_its_words_keep_their_contrast(ink):
    (factor,) = map(float, re.findall(r"brightness\(([\d.]+)\)", CSS))
    card, words = luminance(CARD, factor), luminance(ink, factor)
    assert card < 0.7, "a white card has 1, and the page of a dark theme 0.01"
    assert (card + 0.05) / (words + 0.05) >= 4.5, "what WCAG 2 asks of text"


def test_fonts_are_looked_for_before_the_first_figure_and_once(tmp_path, monkeypatch, capsys):
    import matplotlib

    from course_lib.cli import lab

    asked = []
    monkeypatch.setattr(matplotlib, "get_cachedir", lambda: str(tmp_path))
    monkeypatch.setattr(lab.subprocess, "run", lambda command, **_: asked.append(command[-1]))
    lab.list_fonts()
    assert asked == ["import matplotlib.font_manager"]
    assert capsys.readouterr().out == "Matplotlib looks for fonts, once.\n"
    (tmp_path / "fontlist-v390.json").touch()
    lab.list_fonts()
    assert len(asked) == 1
