"""Sliders: a picture that stands alone where nobody can move it, and that follows where one can."""

from __future__ import annotations

import subprocess
import sys

import pytest

from course_classroom.figures import ring_steps, stage_bars
from course_classroom.notebook import sliders
from course_classroom.notebook.sliders import WIDGET


@pytest.fixture
def shown(monkeypatch):
    found: list[tuple[dict, dict]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, **more: found.append((data, more)))
    return found


@pytest.fixture
def notebook(monkeypatch):
    monkeypatch.setattr(sliders, "_is_notebook", lambda: True)
    return pytest.importorskip("ipywidgets")


def handles(box, widgets) -> dict[str, object]:
    return {
        one.description: one
        for one in box.children
        if isinstance(one, (widgets.SelectionSlider, widgets.ToggleButtons))
    }


def test_without_a_notebook_it_is_the_picture_alone(shown):
    sliders.stages()._ipython_display_()
    (data, more), (words, _) = shown
    assert data == {"image/png": stage_bars().png, "text/plain": stage_bars().alt}
    assert more["metadata"]["image/png"]["alt"] == stage_bars().alt
    assert "The figure in words" in words["text/html"]


def test_without_ipywidgets_it_is_the_picture_and_what_to_install(shown, monkeypatch, capsys):
    monkeypatch.setattr(sliders, "_is_notebook", lambda: True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    sliders.ring(3)._ipython_display_()
    assert shown[0][0]["image/png"] == ring_steps(3).png and WIDGET not in shown[0][0]
    assert capsys.readouterr().out == (
        "The picture has sliders if ipywidgets is installed: pip install ipywidgets\n"
    )


def test_the_sliders_of_the_stages_draw_what_was_chosen(notebook):
    box = sliders.stages().widget()
    moved = handles(box, notebook)
    assert list(moved) == ["parameters Ψ", "ranks N", "precision", "optimizer"]
    image, words = box.children[-2:]
    assert image.value == stage_bars().png
    moved["ranks N"].value = 8
    moved["precision"].value = "bf16, float32 gradients"
    moved["optimizer"].value = "sgd"
    moved["parameters Ψ"].value = 7e10
    wanted = stage_bars(7e10, 8, "bf16, float32 gradients", "sgd")
    assert image.value == wanted.png and int(image.width) == wanted.width
    assert wanted.alt in words.value
    labels = [label for label, _ in moved["parameters Ψ"].options]
    assert labels[:2] == ["120 million", "350 million"] and "7.5 billion" in labels
    asked = handles(sliders.stages(8e9, 48).widget(), notebook)
    assert (asked["parameters Ψ"].value, asked["ranks N"].value) == (8e9, 48)


def test_the_slider_of_the_ring_goes_through_its_steps(notebook):
    box = sliders.ring(3).widget()
    (slider,) = handles(box, notebook).values()
    names = [label for label, _ in slider.options]
    assert len(names) == 5 and names[0] == "before"
    assert names[1] == "1: reduce-scatter 1" and names[4] == "4: all-gather 2"
    image, words = box.children[-2:]
    for step in (4, 0):
        slider.value = step
        assert image.value == (picture := ring_steps(3, step=step)).png
        assert picture.alt in words.value
    assert sliders.ring(3).still.png == ring_steps(3).png


def test_importing_sliders_loads_neither_ipywidgets_nor_matplotlib():
    code = (
        "import sys, course_classroom.notebook.sliders; "
        "sys.exit('ipywidgets' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
