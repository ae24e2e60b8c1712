"""loss.csv: no bit lost, a torn line left out, what follows a checkpoint taken off."""

from __future__ import annotations

import math

import pytest

from course_lib.train.curve import Curve, CurvePoint, read

pytestmark = pytest.mark.cpu("the numbers of a curve")

POINTS = [
    CurvePoint(n, math.pi / n, 100 + n, math.e * n, 1e-3 / 3, 1 / n if n == 4 else None)
    for n in range(1, 8)
]


def written(path, points, after=0):
    curve = Curve(path, after)
    for point in points:
        curve.add(point)
        assert read(path)[-1] == point  # at once, while the file is open
    curve.close()


def test_what_is_read_is_what_was_written(tmp_path):
    path = tmp_path / "loss.csv"
    assert read(path) == []
    written(path, POINTS)
    assert read(path) == POINTS
    assert path.read_text().splitlines()[0] == "step,loss,tokens,norm,lr,validation"
    assert [one.name for one in tmp_path.iterdir()] == ["loss.csv"]


def test_a_line_cut_off_in_the_middle_is_left_out(tmp_path):
    path = tmp_path / "loss.csv"
    written(path, POINTS)
    text = path.read_text()
    for cut in range(1, len(text.splitlines()[-1]) + 1):
        path.write_text(text[:-cut])
        assert read(path) == POINTS[:-1]
    path.write_text("step,lo")
    assert read(path) == []


def test_going_on_takes_off_what_came_after(tmp_path):
    path = tmp_path / "loss.csv"
    written(path, POINTS)
    written(path, POINTS[4:], after=4)
    assert read(path) == POINTS
    written(path, POINTS[:2])
    assert read(path) == POINTS[:2]
