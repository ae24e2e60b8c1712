"""A run's picture: bars as long as their bytes, a mark where the formula says they end."""

from __future__ import annotations

import io

import pytest

from course_lib.figures.colours import RANKS
from course_lib.figures.run_summary import run_summary

MB = 1_000_000
RANK = {
    "rank": 0, "held": 6 * MB, "held_by_tier": {"device": 2 * MB, "host": 3 * MB, "disk": MB},
    "peak": 5 * MB, "sent": 3 * MB, "sent_by_axis": {"dp": MB, "tp": 2 * MB},
    "estimate": {"held": 6 * MB, "sent": 3 * MB},
}  # fmt: skip
LOSSES, VALIDATION = [(1, 5.5), (2, 5.25), (3, 5.0)], [(2, 5.4)]


def colours(picture) -> dict:
    from PIL import Image

    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    return {colour: count for count, colour in image.getcolors(1 << 24)}


def rgb(text: str) -> tuple[int, int, int]:
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


def test_the_words_say_what_the_picture_shows():
    assert run_summary(LOSSES, VALIDATION, [RANK], title="A run").alt == (
        "A run. Loss from 5.500 at step 1 to 5.000 at step 3. Validation loss 5.400 at step 2. "
        "Rank 0 holds 2 MB on the device, 3 MB on the host, 1 MB on disk, 5 MB of the device at "
        "the peak, and sends 3 MB in a step; by formula it holds 6 MB and sends 3 MB."
    )


def test_bars_and_marks_are_where_the_bytes_are():
    both = colours(run_summary(LOSSES, VALIDATION, [RANK, {**RANK, "rank": 1}]))
    mark = both[rgb(RANKS[5])]
    off = {**RANK, "estimate": {"held": 1, "sent": 3 * MB}}
    assert colours(run_summary(LOSSES, [], [RANK]))[rgb(RANKS[5])] < mark
    assert colours(run_summary(LOSSES, [], [off])) != colours(run_summary(LOSSES, [], [RANK]))
    device, host = both[rgb("#5c5c5c")], both[rgb("#a8a8a8")]
    assert host / device == pytest.approx(1.5, rel=0.15)  # 3 MB beside 2


def test_without_a_measured_step_it_is_the_loss_alone():
    picture = run_summary(LOSSES, VALIDATION, [])
    assert picture.width < run_summary(LOSSES, VALIDATION, [RANK]).width
    assert len(picture.png) < 200_000
    with pytest.raises(ValueError, match="a step or more"):
        run_summary([], [], [RANK])
