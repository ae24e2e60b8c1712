"""The layers that `mystery_cut` of lesson 02 asks about, on the judge's real ranks."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks.lesson_02 import mystery

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions" / "02_one_product"


@pytest.fixture(scope="module")
def layers(desk) -> list[dict[str, str]]:
    """What each of three ranks shows of the layers of `mystery_cut`."""
    desk.judge.ready()
    run = "from course_lib.classroom.checks.lesson_02 import mystery\n"
    run += "seen = {case: mystery.run(case, group) for case in mystery.LAYERS}"
    assert not desk.judge.run(run).failed
    return desk.judge.pull("seen")


def test_three_real_ranks_show_what_the_notebook_shows(layers):
    cells = nbformat.read(SOLUTIONS / "mystery_cut.ipynb", as_version=4).cells
    shown = next(c.outputs[0].text for c in cells if c.id == "mystery_cut-show")
    assert layers[0] == layers[1] == layers[2]  # as the question says
    text = "\n".join(layers[1][case] for case in "ABCDE")
    assert text == shown.replace("[rank 1] ", "").rstrip("\n")


def test_what_is_shown_agrees_with_what_is_right(layers):
    """The sum's phase and size are those that the cut owes; the shapes are those of its parts."""
    for case, text in layers[0].items():
        layer = mystery.LAYERS[case]
        b, h, f = (size // (3 if at == layer.cut else 1) for size, at in (
            (layer.b, mystery.BATCH), (layer.h, mystery.ROWS), (layer.f, mystery.COLUMNS)
        ))  # fmt: skip
        assert f"W [{h}, {f}]" in text
        phase, count = {
            mystery.COLUMNS: ("backward", layer.b * layer.h),
            mystery.ROWS: ("forward", layer.b * layer.f),
            mystery.BATCH: ("backward", layer.h * layer.f),
        }[layer.cut]
        sums = re.findall(r"(forward|backward) +all_reduce of (\d+) elements", text)
        assert sums == [(phase, str(count))]
        assert ("all_gather" in text) == layer.whole_ends
        ends = (b, layer.h if layer.whole_ends else h), (b, layer.f if layer.whole_ends else f)
        assert f"X {list(ends[0])}  W" in text
        assert f"Y {list(ends[1])}\n" in text
