"""Bars are as long as their bytes, begin at 0, and carry their number."""

from __future__ import annotations

import io

import pytest

from course_lib.figures import bars, stacked_bars
from course_lib.figures.bars import shown
from course_lib.figures.colours import METHODS

PANELS = {
    "sent": {"gathered": 4_000_000.0, "cut": 400_000.0, "fused": 1_000_000.0},
    "peak": {"gathered": 27e6, "cut": 9e6, "fused": 0.0},
}


def pixels(picture):
    from PIL import Image

    return Image.open(io.BytesIO(picture.png)).convert("RGB")


def test_a_number_is_written_with_its_unit():
    wanted = {
        4_212_345: "4.21 MB",
        373_248: "373 kB",
        1_000: "1 kB",
        999: "999 bytes",
        0: "0 bytes",
    }
    assert {nbytes: shown(nbytes) for nbytes in wanted} == wanted


def test_every_bar_is_told_with_its_number():
    assert bars(PANELS, title="Three ways").alt == (
        "Three ways. sent: gathered 4 MB, cut 400 kB, fused 1 MB. peak: gathered 27 MB, cut 9 MB, "
        "fused 0 bytes."
    )


def test_a_bar_is_as_long_as_its_bytes():
    image = pixels(bars({"sent": PANELS["sent"]}))
    wide, high = image.size
    long = {}
    for fill in METHODS[:3]:
        rgb = tuple(int(fill[i : i + 2], 16) for i in (1, 3, 5))
        rows = [sum(image.getpixel((x, y)) == rgb for x in range(wide)) for y in range(0, high, 4)]
        long[fill] = max(rows)
    most = long[METHODS[0]]
    assert long[METHODS[1]] / most == pytest.approx(0.1, abs=0.02)
    assert long[METHODS[2]] / most == pytest.approx(0.25, abs=0.02)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="a panel or more"):
        bars({"sent": {}})
    with pytest.raises(ValueError, match="has the ways"):
        bars({"sent": {"cut": 1}, "peak": {"fused": 1}})
    with pytest.raises(ValueError, match="fewer than 0"):
        bars({"sent": {"cut": -1}})


def test_the_picture_is_a_small_white_card_and_the_same_each_time():
    one, other = (bars(PANELS, title="Three ways") for _ in range(2))
    assert one.png == other.png and len(one.png) < 150_000
    image = pixels(one)
    wide, high = image.size
    edge = [(x, y) for x in range(wide) for y in (0, high - 1)]
    edge += [(x, y) for x in (0, wide - 1) for y in range(high)]
    assert all(image.getpixel(at) == (255, 255, 255) for at in edge)


TIERS = {
    "stage 3": {"device": 4e6, "host": 0.0, "disk": 0.0},
    "stage 3, cpu": {"device": 1e6, "host": 3e6, "disk": 0.0},
    "stage 3, nvme": {"device": 0.0, "host": 1e6, "disk": 7e6},
}


def longest(picture, colour: str) -> int:
    image = pixels(picture)
    wide, high = image.size
    rgb = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return max(sum(image.getpixel((x, y)) == rgb for x in range(wide)) for y in range(0, high, 3))


def test_stacked_bars_have_one_scale_for_all_and_the_parts_of_their_bytes():
    picture = stacked_bars(TIERS, title="Where it is")
    device, host, disk = (longest(picture, METHODS[i]) for i in (0, 3, 1))
    assert device / disk == pytest.approx(4 / 7, rel=0.05)
    assert host / disk == pytest.approx(3 / 7, rel=0.08)
    assert picture.alt == (
        "Where it is. stage 3: device 4 MB, host 0 bytes, disk 0 bytes. stage 3, cpu: device 1 MB, "
        "host 3 MB, disk 0 bytes. stage 3, nvme: device 0 bytes, host 1 MB, disk 7 MB."
    )
    image = pixels(picture)
    wide, high = image.size
    edge = [(x, y) for x in range(wide) for y in (0, high - 1)]
    edge += [(x, y) for x in (0, wide - 1) for y in range(high)]
    assert all(image.getpixel(at) == (255, 255, 255) for at in edge)


def test_a_part_begins_where_the_parts_before_it_end():
    image = pixels(stacked_bars({"one": {"a": 2e6, "b": 3e6, "c": 5e6}}))
    wide, high = image.size
    shades = [tuple(int(METHODS[i][k : k + 2], 16) for k in (1, 3, 5)) for i in (0, 3, 1)]
    rows = [[image.getpixel((x, y)) for x in range(wide)] for y in range(0, high // 2, 4)]
    row = max(rows, key=lambda row: sum(map(row.count, shades)))  # through the bar
    spans = []
    for rgb in shades:
        columns = [x for x, here in enumerate(row) if here == rgb]
        spans.append((min(columns), max(columns)))
    long = spans[-1][1] - spans[0][0]
    assert [(begin - spans[0][0]) / long for begin, _ in spans] == pytest.approx(
        [0, 0.2, 0.5], abs=0.02
    )


def test_stacked_bars_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match="a way or more with a part"):
        stacked_bars({"a": {}})
    with pytest.raises(ValueError, match="has the parts"):
        stacked_bars({"a": {"x": 1}, "b": {"y": 1}})
    with pytest.raises(ValueError, match="fewer than 0"):
        stacked_bars({"a": {"x": -1}})
    with pytest.raises(ValueError, match="no way has a byte"):
        stacked_bars({"a": {"x": 0}})
    with pytest.raises(ValueError, match="6 parts"):
        stacked_bars({"a": dict.fromkeys("uvwxyz", 1)})


def test_three_panels_are_no_wider_than_a_notebook():
    three = {**PANELS, "of that, the loss": PANELS["sent"]}
    assert bars(three).width <= 1000
    image = pixels(bars(three))
    wide, high = image.size
    assert all(image.getpixel((wide - 1, y)) == (255, 255, 255) for y in range(high))
