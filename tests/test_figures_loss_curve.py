"""Runs that agree are told apart: by marks on the curve, and by their distance on a log axis."""

from __future__ import annotations

import io

import pytest

from course_lib.figures.colours import line_of_method, method
from course_lib.figures.loss_curve import LEAST, agrees, distances, loss_curve, which_marks

ONE = [(step, 5.0 - 0.1 * step) for step in range(1, 21)]
NEAR = [(step, loss + 3e-13) for step, loss in ONE]
FAR = [(step, loss + 0.02 * step) for step, loss in ONE]


def pixels_of(picture, colour: str) -> int:
    from PIL import Image

    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    wanted = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return sum(count for count, rgb in image.getcolors(1 << 24) if rgb == wanted)


def test_distances_are_those_from_the_first_run_at_its_steps():
    apart = distances({"one": ONE, "near": NEAR, "short": ONE[:3]})
    assert list(apart) == ["near"]
    assert [step for step, _ in apart["near"]] == list(range(1, 21))
    assert [gap for _, gap in apart["near"]] == pytest.approx([3e-13] * 20, rel=0.01)


@pytest.mark.parametrize(
    ("runs", "agree"),
    [
        ({"one": ONE}, False),
        ({"one": ONE, "near": NEAR}, True),
        ({"one": ONE, "near": NEAR, "same": ONE}, True),
        ({"one": ONE, "far": FAR}, False),
        ({"one": ONE, "near": NEAR, "far": FAR}, False),
        ({"one": ONE, "short": ONE[:3]}, False),
    ],
)
def test_only_runs_that_agree_have_a_panel_of_distances(runs, agree):
    assert agrees(runs, distances(runs)) == agree
    picture = loss_curve(runs)
    assert ("differs from one" in picture.alt) == agree


def test_each_of_three_runs_on_one_line_is_seen():
    picture = loss_curve({"one": ONE, "near": NEAR, "same": ONE}, bound=1e-9, title="Three")
    seen = [pixels_of(picture, method(i)) for i in range(3)]
    assert min(seen) > 400, seen
    assert picture.alt.startswith("Three. Loss by step: one goes from 4.900 at step 1")
    assert picture.alt.endswith(
        "near differs from one by less than 1e-12 at every step. "
        "same differs from one by less than 1e-12 at every step."
    )
    assert len(picture.png) < 200_000


@pytest.mark.parametrize(("others", "points"), [(1, 20), (2, 20), (3, 40), (5, 7), (5, 4), (4, 3)])
def test_no_two_runs_have_a_mark_of_one_size_at_one_step(others, points):
    seen = set()
    for i in range(1, others + 1):
        first, every, turn = which_marks(i, others, points)
        own = {(step, turn) for step in range(first, points, every)}
        assert own and not own & seen
        seen |= own


def test_more_runs_than_steps_are_all_seen():
    runs = {f"way {k}": [(step, loss + k * 1e-9) for step, loss in ONE[:3]] for k in range(5)}
    seen = [pixels_of(loss_curve(runs), line_of_method(i)) for i in range(5)]
    assert min(seen) > 200, seen
    fewer = {name: runs[name] for name in list(runs)[:4]}
    assert loss_curve(runs).png != loss_curve(fewer).png


@pytest.mark.parametrize(("steps", "edged"), [(3, True), (20, False)])
def test_a_mark_on_a_mark_has_a_white_edge_and_is_smaller(steps, edged):
    from matplotlib.figure import Figure

    from course_lib.figures.loss_curve import _curves

    axis = Figure().subplots()
    _curves(axis, {f"way {k}": ONE[:steps] for k in range(5)}, marked=True)
    under, over = axis.lines[1], axis.lines[4]
    assert (over.get_markeredgecolor() == "#ffffff") == edged
    assert (over.get_markersize() < under.get_markersize()) == edged


def test_words_say_a_round_bound_that_noise_does_not_move():
    for gap, said in ((3e-11, "1e-9"), (5e-7, "1e-4"), (9e-3, "a percent")):
        runs = {"one": ONE, "other": [(step, loss + gap) for step, loss in ONE]}
        assert f"by less than {said} at every step" in loss_curve(runs).alt


def test_a_bound_moves_the_axis_and_needs_runs_that_agree():
    runs = {"one": ONE, "near": NEAR}
    assert loss_curve(runs, bound=1e-9).png != loss_curve(runs).png
    with pytest.raises(ValueError, match="bound= is for runs that agree"):
        loss_curve({"one": ONE, "far": FAR}, bound=1e-9)
    with pytest.raises(ValueError, match="a step or more of each run"):
        loss_curve({"one": []})
    assert LEAST > 0  # what is equal has a place on a logarithmic axis


def test_steps_are_whole_numbers():
    """Three steps would have ticks at 1.5 and 2.5; the picture with them is another one."""
    from matplotlib.figure import Figure

    from course_lib.figures.loss_curve import _curves

    axis = Figure().subplots()
    _curves(axis, {"one": ONE[:3]}, marked=False)
    assert all(tick == int(tick) for tick in axis.get_xticks())
