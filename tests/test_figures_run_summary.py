"""A run's picture: bars as long as their bytes, a mark where the formula says they end."""

from __future__ import annotations

import io

import numpy as np
import pytest

from course_lib.figures.colours import INK, method
from course_lib.figures.run_summary import run_summary

MB = 1_000_000
RANK = {
    "rank": 0, "held": 6 * MB, "held_by_tier": {"device": 2 * MB, "host": 3 * MB, "disk": MB},
    "peak": 5 * MB, "sent": 3 * MB, "sent_by_axis": {"dp": MB, "tp": 2 * MB},
    "estimate": {
        "held": 6 * MB, "held_by_tier": {"device": 2 * MB, "host": 3 * MB, "disk": MB},
        "peak": 4 * MB, "sent": 3 * MB,
    },
}  # fmt: skip
LOSSES, VALIDATION = [(1, 5.5), (2, 5.25), (3, 5.0)], [(2, 5.4)]


def rgb(text: str) -> tuple[int, int, int]:
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


def test_the_words_say_what_the_picture_shows():
    assert run_summary(LOSSES, VALIDATION, [RANK], title="A run").alt == (
        "A run. Loss from 5.500 at step 1 to 5.000 at step 3. Validation loss 5.400 at step 2. "
        "Rank 0 holds 2 MB on the device, 3 MB on the host, 1 MB on disk, 5 MB of the device at "
        "the peak, and sends 3 MB in a step; by formula it holds 2 MB on the device, 3 MB on "
        "the host, 1 MB on disk and sends 3 MB; its peak is estimated at 4 MB."
    )


def where(picture, colour: str, near: int = 0) -> np.ndarray:
    """Which pixels, (high, wide), have this colour, or one as near to it in red, green and blue."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    return (abs(np.asarray(image, dtype=int) - rgb(colour)) <= near).all(axis=-1)


def bar(picture, colour: str) -> np.ndarray:
    """The columns of the longest line of that colour: of a bar, not of the legend or a letter."""
    pixels = where(picture, colour)
    columns = np.flatnonzero(pixels[pixels.sum(axis=1).argmax()])
    return max(np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1), key=len)


def marks(picture) -> list[float]:
    """Where the memory's marks are, in MB: the device's bar is 2 MB long."""
    device = bar(picture, "#7a7a7a")
    each = (device[-1] - device[0]) / 2
    tall = np.flatnonzero(where(picture, method(1)).sum(axis=0) > 15)
    tall = tall[tall < device[0] + 6 * each]
    groups = np.split(tall, np.flatnonzero(np.diff(tall) > 3) + 1)
    return [float((group.mean() - device[0]) / each) for group in groups]


def test_bars_and_marks_are_where_the_bytes_are():
    picture = run_summary(LOSSES, [], [RANK])
    device, host, disk = (bar(picture, grey) for grey in ("#7a7a7a", "#a8a8a8", "#dcdcdc"))
    assert len(host) / len(device) == pytest.approx(3 / 2, rel=0.05)
    assert len(disk) / len(device) == pytest.approx(1 / 2, rel=0.08)
    assert device[0] == host[0] == disk[0]  # below it, from the same zero
    assert marks(picture) == pytest.approx([1, 2, 3, 4], rel=0.03)


def test_the_device_s_bar_ends_at_its_peak():
    """What was held and what came on top at the peak, of no other tier: 5 MB where 2 are dark."""
    picture = run_summary(LOSSES, [], [RANK])
    device = bar(picture, "#7a7a7a")
    dark = where(picture, INK, near=100)[:, device[0] :].sum(axis=0)
    tall = np.flatnonzero(dark > 100)  # the dark bar, and the white one's right edge
    assert tall[tall < 2.7 * len(device)].max() / len(device) == pytest.approx(5 / 2, rel=0.03)


def test_a_mark_is_whole_at_the_end_of_the_longest_bar():
    ends = {**RANK["estimate"], "peak": 5 * MB}
    short = {**RANK["estimate"], "peak": 4 * MB}
    pixels = [
        int(where(run_summary(LOSSES, [], [{**RANK, "estimate": e}]), method(1)).sum())
        for e in (ends, short)
    ]
    assert pixels[0] == pytest.approx(pixels[1], rel=0.02)


def test_what_a_rank_has_not_is_not_drawn():
    estimate = {"held": 2 * MB, "held_by_tier": {"device": 2 * MB}, "sent": 0}
    alone = {**RANK, "held_by_tier": {"device": 2 * MB, "host": 0}, "sent": 0, "sent_by_axis": {}}
    picture = run_summary(LOSSES, [], [{**alone, "estimate": estimate}])  # one rank, with dropout
    assert len(bar(picture, "#a8a8a8")) < 5 > len(bar(picture, "#dcdcdc"))  # edges of letters
    assert marks(picture) == pytest.approx([2], rel=0.03)
    assert "estimated" not in picture.alt


def test_without_a_measured_step_it_is_the_loss_alone():
    picture = run_summary(LOSSES, VALIDATION, [])
    assert picture.width < run_summary(LOSSES, VALIDATION, [RANK]).width
    assert len(run_summary(LOSSES, VALIDATION, [RANK] * 8).png) < 200_000
    with pytest.raises(ValueError, match="a step or more"):
        run_summary([], [], [RANK])
