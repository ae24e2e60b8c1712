"""The picture of tokens per second: drawn from what was measured, with the even batches marked."""

from __future__ import annotations

import io

import pytest
import torch

from course_lib.figures.colours import method
from course_lib.figures.throughput import throughput

WAYS = {
    "streamed": {2: 40.0, 4: 75.0, 8: 150.0, 16: 250.0},
    "cut": {2: 110.0, 4: 160.0, 8: 190.0, 16: 230.0},
}
EVEN = {"even in bytes": 23, "even in time": 13.333}


def pixels(picture) -> torch.Tensor:
    """(high, wide, 3)"""
    from PIL import Image

    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(
        image.size[1], image.size[0], 3
    )


def found(picture, way: int) -> torch.Tensor:
    """(high, wide): where the way's colour is."""
    wanted = torch.tensor([int(method(way)[i : i + 2], 16) for i in (1, 3, 5)])
    return (pixels(picture) == wanted).all(-1)


def test_the_words_say_every_point_and_the_marks():
    assert throughput(WAYS, even=EVEN, title="A title").alt == (
        "A title. Tokens per second by rows. streamed: 40 at 2 rows, 75 at 4 rows, 150 at 8 rows, "
        "250 at 16 rows. cut: 110 at 2 rows, 160 at 4 rows, 190 at 8 rows, 230 at 16 rows. "
        "Marked: even in bytes at 23 rows; even in time at 13.3 rows."
    )
    assert throughput({"one": {8: 3.0, 4: 2.0}}).alt == (
        "Tokens per second by rows. one: 2 at 4 rows, 3 at 8 rows."
    )


def test_points_rise_and_a_line_is_the_models():
    plain = found(throughput(WAYS), 0)
    flat = found(throughput(WAYS, models={"streamed": lambda rows: 10.0}), 0)
    body = slice(0, plain.shape[1])
    columns = plain[:, body].any(0).nonzero().flatten()
    right, middle = columns[-1], columns[len(columns) // 2]
    top = [plain[:, c].float().argmax().item() for c in (right, middle)]
    assert top[0] < top[1]  # a larger batch is drawn higher
    low = flat[int(0.8 * len(flat)) :].any(0).sum()
    assert low > 0.5 * flat.shape[1] > plain[int(0.8 * len(plain)) :].any(0).sum()


def test_a_ratio_is_a_distance_on_both_axes():
    from matplotlib.figure import Figure

    from course_lib.figures.throughput import _paint

    figure = Figure()
    _paint(figure, WAYS, {}, {}, "")
    assert (figure.axes[0].get_xscale(), figure.axes[0].get_yscale()) == ("log", "log")


def test_a_mark_is_an_upright_line_at_its_batch():
    """Dark pixels in a column, more than without the mark; further right for more rows."""

    def columns(even) -> torch.Tensor:
        # Narrower than the axis: the scale does not change with the mark.
        image = pixels(throughput(WAYS, even=even)).float().mean(-1)
        bare = pixels(throughput(WAYS)).float().mean(-1)
        half = slice(len(image) // 2, int(0.8 * len(image)))  # below the legend
        new = ((image < 80) & (bare >= 80))[half].sum(0)
        return (new > 0.3 * new.max()).nonzero().flatten().float()

    four, ten = columns({"even": 4.5}), columns({"even": 10.0})
    assert 0 < four.mean() < ten.mean() and ten.max() - ten.min() < 30


@pytest.mark.parametrize("title", ["", "Streamed weights beside a cut model, on two ranks"])
def test_the_picture_is_a_card_that_cuts_nothing_off(title):
    image = pixels(throughput(WAYS, even=EVEN, title=title))
    for edge in (image[0], image[-1], image[:, 0], image[:, -1]):
        assert (edge == 255).all()
    assert throughput(WAYS, even=EVEN).png == throughput(WAYS, even=EVEN).png


def test_what_cannot_be_drawn_is_refused():
    for ways in ({}, {"a": {}}):
        with pytest.raises(ValueError, match="a way or more"):
            throughput(ways)
    for measured in ({0: 1.0}, {1: 0.0}):
        with pytest.raises(ValueError, match="'a': rows and tokens per second"):
            throughput({"a": measured})
    with pytest.raises(ValueError, match=r"lines for \['b'\], and the ways are \['a'\]"):
        throughput({"a": {1: 1.0}}, models={"b": float})
    with pytest.raises(ValueError, match="more than 0 rows"):
        throughput({"a": {1: 1.0}}, even={"even": 0})
