"""The pictures of learning rates and of the loss scale: drawn from numbers, and said in words."""

from __future__ import annotations

import io

import pytest
import torch

from course_lib.figures.colours import method
from course_lib.figures.loss_scale import SCALE, SKIPPED, loss_scale
from course_lib.figures.schedules import schedules, staircase

RATES = {"linear": [0.0, 1e-3, 2e-3, 1e-3], "constant": [1e-3] * 4}
SCALES = [64.0, 64.0, 32.0, 16.0, 16.0, 16.0, 32.0]
SKIPPED_AT = [True, True, True, False, False, False, True]


def colour(picture, name: str) -> torch.Tensor:
    """(points, 2): height above the bottom and place from the left of each pixel of a colour."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(
        image.size[1], image.size[0], 3
    )
    wanted = torch.tensor([int(name[i : i + 2], 16) for i in (1, 3, 5)])
    found = (pixels == wanted).all(-1).nonzero()
    found[:, 0] = image.size[1] - found[:, 0]
    return found


def test_the_words_of_the_rates_say_where_each_begins_is_highest_and_ends():
    assert schedules(RATES, title="Two").alt == (
        "Two. Learning rate by update: linear begins at 0, is highest with 0.002 at update 2, and "
        "ends at 0.001; constant begins at 0.001, is highest with 0.001 at update 0, and ends at "
        "0.001."
    )


def test_a_top_that_is_below_by_a_rounding_is_the_top():
    rates = [0.0, 1e-3 * (1 - 1e-15), 1e-3, 0.0]
    assert "is highest with 0.001 at update 1," in schedules({"up": rates}).alt


@pytest.mark.parametrize(
    ("rates", "upright"),
    [
        ([1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0], True),
        ([0.0, 0.0, 1.0, 2.0, 3.0, 3.0], False),
        ([1.0, 1.0, 2.0, 2.0], False),
        ([1.0, 2.0, 1.0, 2.0], False),
        ([1.0] * 4, False),
    ],
)
def test_a_staircase_has_upright_steps(rates, upright):
    from matplotlib.figure import Figure

    from course_lib.figures.schedules import _paint

    assert staircase(rates) == upright
    figure = Figure()
    _paint(figure, {"one": rates}, "")
    assert (figure.axes[0].lines[0].get_drawstyle() == "steps-post") == upright


def test_the_words_of_the_scale_say_which_steps_were_skipped():
    assert loss_scale(SCALES, SKIPPED_AT, title="A run", first=5).alt == (
        "A run. Loss scale by step: 64 at step 5, 32 at step 11, between 16 and 64. Steps skipped "
        "by an overflow: 5 to 7, 11."
    )
    assert loss_scale([8.0], [False]).alt.endswith("No step was skipped.")


def test_a_rate_that_rises_is_drawn_rising():
    rising = colour(schedules({"up": [0.0, 1.0, 2.0], "still": [1.0] * 3}), method(0))
    left = rising[rising[:, 1] < rising[:, 1].float().quantile(0.1), 0].float().mean()
    # the legend's sample lies at the right or the left, above or below: the middle is the line's
    places = rising[:, 1].unique()
    middle = rising[rising[:, 1] == places[len(places) // 2], 0].float().mean()
    assert middle > left + 50


def test_a_skipped_step_has_a_cross_and_halves_lie_as_far_apart_as_halves():
    crosses = colour(loss_scale(SCALES, SKIPPED_AT), SKIPPED)
    legend = colour(loss_scale(SCALES, [True] + 6 * [False]), SKIPPED)
    assert len(crosses) > 1.8 * len(legend) > 0  # four crosses and the legend's, one and its
    assert not len(colour(loss_scale(SCALES, [False] * 7), SKIPPED))
    line = colour(loss_scale([64.0] * 9 + [32.0] * 9 + [16.0] * 9, [False] * 27), SCALE)
    rows, counts = line[:, 0].unique(return_counts=True)
    flat = rows[counts > 100].tolist()  # the rows of the three levels, each some pixels thick
    levels = [row for row, before in zip(flat, [-9, *flat], strict=False) if row - before > 5]
    assert len(levels) == 3
    assert abs((levels[2] - levels[1]) - (levels[1] - levels[0])) <= 2


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="a schedule or more"):
        schedules({})
    with pytest.raises(ValueError, match="an update or more"):
        schedules({"none": []})
    with pytest.raises(ValueError, match="2 scales and 1 steps"):
        loss_scale([1.0, 2.0], [True])
    with pytest.raises(ValueError, match="above 0"):
        loss_scale([0.0], [True])


@pytest.mark.parametrize("title", ["", "A title of some length, about a run in fp16"])
def test_pictures_are_white_cards_that_cut_nothing_off(title):
    from PIL import Image

    for picture in (schedules(RATES, title=title), loss_scale(SCALES, SKIPPED_AT, title=title)):
        image = Image.open(io.BytesIO(picture.png)).convert("L")
        wide, high = image.size
        edges = [(x, y) for x in range(wide) for y in (0, high - 1)]
        edges += [(x, y) for y in range(high) for x in (0, wide - 1)]
        assert {image.getpixel(at) for at in edges} == {255}
