"""The picture of scaling efficiency: every bar as high as its number, on one scale from 0."""

from __future__ import annotations

import io

import pytest
import torch

from course_lib.figures.colours import RANKS
from course_lib.figures.scaling import FILLS, ScalingBar, scaling_bars

BARS = [ScalingBar("1 rank", 100.0, 100.0), ScalingBar("2 ranks\ntp", 80.0, 90.0, 40.0)]
WORDS = (
    "1 rank: measured 100 %, predicted 100 %; "
    "2 ranks tp: measured 80 %, predicted 90 %, published 40 %."
)


def pixels(picture) -> torch.Tensor:
    """(high, wide, 3)"""
    from PIL import Image

    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(
        image.size[1], image.size[0], 3
    )


def heights(picture, kind: str) -> list[int]:
    """Pixels of each bar of that fill, from left to right: the tallest column of each run."""
    wanted = torch.tensor([int(FILLS[kind][i : i + 2], 16) for i in (1, 3, 5)])
    columns = (pixels(picture) == wanted).all(-1).sum(0).tolist()
    found: list[list[int]] = [[]]
    for count in columns:
        if count > 60:  # the legend's patch is lower
            found[-1].append(count)
        elif found[-1]:
            found.append([])
    return [max(run) for run in found if run]


def test_every_bar_is_told_in_words():
    assert scaling_bars(BARS, title="A title").alt == f"A title. Scaling efficiency. {WORDS}"
    panels = {"here": BARS, "the article": [ScalingBar("8.3B", published=77)]}
    assert scaling_bars(panels).alt == (
        f"Scaling efficiency. here: {WORDS} the article: 8.3B: published 77 %."
    )


def test_a_bar_is_as_high_as_its_percent_on_one_scale_for_all_panels():
    full, part = heights(scaling_bars(BARS), "measured")
    assert part / full == pytest.approx(0.8, rel=0.03)
    panels = {"here": [ScalingBar("a", 80)], "there": [ScalingBar("b", 80), ScalingBar("c", 20)]}
    first, second, low = heights(scaling_bars(panels), "measured")
    assert first == pytest.approx(second, abs=2)
    assert low / first == pytest.approx(0.25, rel=0.1)
    plain = [ScalingBar("a", 80), ScalingBar("b", predicted=100)]
    higher = [ScalingBar("a", 80), ScalingBar("b", predicted=200)]  # the scale is twice as long
    (before,), (after,) = (heights(scaling_bars(bars), "measured") for bars in (plain, higher))
    assert after / before == pytest.approx(0.5, rel=0.05)


def test_the_kinds_stand_beside_each_other():
    """The measured bar to the left of the published one, with room for the predicted between."""

    def columns(kind: str) -> torch.Tensor:
        wanted = torch.tensor([int(FILLS[kind][i : i + 2], 16) for i in (1, 3, 5)])
        image = pixels(scaling_bars([ScalingBar("one", 90, 90, 90)]))
        return ((image == wanted).all(-1).sum(0) > 60).nonzero().flatten()

    measured, published = columns("measured"), columns("published")
    wide = measured[-1] - measured[0] + 1
    assert wide < published[0] - measured[-1] < 2 * wide
    assert len(published) == pytest.approx(len(measured), abs=3)  # none covers another


def test_no_fill_is_a_ranks_colour():
    assert not {fill.lower() for fill in FILLS.values()} & {colour.lower() for colour in RANKS}


@pytest.mark.parametrize("title", ["", "Weak scaling here, and as it was published for 512 GPUs"])
def test_the_picture_is_a_card_that_cuts_nothing_off(title):
    image = pixels(scaling_bars(BARS, title=title))
    for edge in (image[0], image[-1], image[:, 0], image[:, -1]):
        assert (edge == 255).all()
    assert scaling_bars(BARS).png == scaling_bars(BARS).png


def test_what_cannot_be_drawn_is_refused():
    for bars in ([], {}, {"here": []}):
        with pytest.raises(ValueError, match="needs a bar or more"):
            scaling_bars(bars)
    with pytest.raises(ValueError, match="'a' has no value"):
        scaling_bars([ScalingBar("a")])
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"'b': predicted=\S+ is no efficiency"):
            scaling_bars([ScalingBar("b", 1.0, value)])
