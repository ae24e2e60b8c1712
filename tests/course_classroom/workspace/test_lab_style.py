"""What `course lab` does for figures: the style of a dark theme is served, fonts are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jupyterlab")

from course_classroom.cli.lab import lab_options
from course_classroom.workspace.server import STYLE, CourseServer


def test_jupyterlab_is_told_to_load_it_and_finds_ours_first():
    assert "--LabApp.custom_css=True" in lab_options([])
    first, *others = CourseServer().static_custom_path
    assert Path(first) / "custom.css" == STYLE / "custom.css" and others


def test_fonts_are_looked_for_before_the_first_figure_and_once(tmp_path, monkeypatch, capsys):
    import matplotlib

    from course_classroom.cli import lab

    asked = []
    monkeypatch.setattr(matplotlib, "get_cachedir", lambda: str(tmp_path))
    monkeypatch.setattr(lab.subprocess, "run", lambda command, **_: asked.append(command[-1]))
    lab.list_fonts()
    assert asked == ["import matplotlib.font_manager"]
    assert capsys.readouterr().out == "Matplotlib searches for fonts (once).\n"
    (tmp_path / "fontlist-v390.json").touch()
    lab.list_fonts()
    assert len(asked) == 1
