"""Stacked bars: one for each setting, its parts on one scale, and what is no bar."""

from __future__ import annotations

import io

import pytest

from course_lib.figures.stacked import stacked

KEPT = {
    "here": {"device": 3_000, "host": 0, "disk": 0},
    "away": {"device": 1_000, "host": 2_000, "disk": 6_000},
}


def pixels(picture):
    from matplotlib.image import imread

    return imread(io.BytesIO(picture.png))


def test_each_setting_is_said_with_its_parts_and_its_sum():
    picture = stacked(KEPT, title="Tiers")
    assert picture.alt == (
        "Tiers. here: device 3 kB, host 0 bytes, disk 0 bytes; in all 3 kB. "
        "away: device 1 kB, host 2 kB, disk 6 kB; in all 9 kB."
    )
    assert len(picture.png) < 200_000


def test_amounts_are_said_as_asked():
    assert "device 3; in all 3." in stacked({"x": {"device": 3.0}}, say="{:g}".format).alt


def dark_in_row(picture, share):
    """Pixels of the first part's shade in a row of the picture, at this share of its height."""
    page = pixels(picture)
    row = page[int(share * len(page)), :, :3]
    return int((abs(row - (0x22 / 255, 0x27 / 255, 0x2B / 255)).max(axis=1) < 0.02).sum())


def test_all_bars_have_one_scale():
    """3,000 of a part are three times as long as 1,000 of it, in the bar below."""
    picture = stacked(KEPT)
    shares = [k / 100 for k in range(5, 75)]
    lengths = {round(dark_in_row(picture, share), -1) for share in shares}
    longest = max(lengths)
    assert any(abs(longest / 3 - length) < 0.05 * longest for length in lengths), lengths


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({}, "nothing is kept"),
        ({"a": {"device": 0}}, "nothing is kept"),
        ({"a": {"device": 1}, "b": {"host": 1}}, "b has the parts"),
        ({"a": {"device": 2, "host": -1}}, "below 0"),
        ({"a": dict.fromkeys("abcdef", 1)}, "told apart"),
    ],
)
def test_what_is_no_bar_is_refused(kept, said):
    with pytest.raises(ValueError, match=said):
        stacked(kept)
