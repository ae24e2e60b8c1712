"""A flat bucket cut over ranks: each number in the colour of the rank that updates it."""

from __future__ import annotations

import io

import pytest
import torch

from course_lib.figures.colours import RANKS
from course_lib.figures.flat_cut import flat_cut, held
from course_lib.zero import partition

LENGTHS = [("last", 4), ("middle", 13), ("first", 2)]  # 19 numbers: shards of 7 on three ranks


def test_pieces_are_those_of_the_library():
    named = [(name, torch.nn.Parameter(torch.zeros(k))) for name, k in LENGTHS]
    for n in (1, 2, 3, 4, 30):
        (bucket,) = partition(reversed(named), n).buckets
        for rank, own in enumerate(held(LENGTHS, bucket.cut.shard, n)):
            starts = {slot.name: slot.start for slot in bucket.slots}
            want = [
                (p.slot.name, starts[p.slot.name] + p.start, starts[p.slot.name] + p.stop)
                for p in bucket.pieces(rank)
            ]
            assert own == want


def test_who_has_what_is_told():
    alt = flat_cut({"bucket": (LENGTHS, 7)}, world=3, title="Cut").alt
    assert alt == (
        "Cut. A bucket's parameters end to end. "
        "bucket, rank 0: 7 elements, last to middle, 3 of the 13 of middle. "
        "bucket, rank 1: 7 elements, middle to middle, 7 of the 13 of middle. "
        "bucket, rank 2: 5 elements, middle to first, 3 of the 13 of middle."
    )


def test_a_name_stands_over_a_line_as_long_as_its_parameter():
    from matplotlib.figure import Figure

    from course_lib.figures.flat_cut import _paint

    figure = Figure()
    _paint(figure, {"b": ([("long", 50), ("a_name_without_room", 4), ("rest", 46)], 50)}, 2, "")
    axis = figure.axes[0]
    level = [line for line in axis.lines if len(set(line.get_ydata())) == 1]
    spans = [[round(float(x)) for x in line.get_xdata()] for line in level]
    assert spans == [[0, 50], [50, 54], [54, 100]]
    turned = {t.get_text(): t.get_rotation() for t in axis.texts if "rank" not in t.get_text()}
    assert turned == {"long": 0.0, "a_name_without_room": 90.0, "rest": 0.0}


def test_colours_are_as_wide_as_shards_and_padding_has_none():
    from PIL import Image

    image = Image.open(io.BytesIO(flat_cut({"b": ([("p", 9)], 5)}, world=2).png)).convert("RGB")
    wide, high = image.size

    def most(rank: int) -> int:
        rgb = tuple(int(RANKS[rank][i : i + 2], 16) for i in (1, 3, 5))
        rows = range(0, high, 2)
        return max(sum(image.getpixel((x, y)) == rgb for x in range(wide)) for y in rows)

    # five numbers against four; rank 1 has a hatch, which takes some of its pixels
    assert 0.55 < most(1) / most(0) < 0.85
    assert 0.4 < most(0) / wide < 0.52


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="no bucket"):
        flat_cut({}, world=2)
    for shard in (6, 8):
        with pytest.raises(ValueError, match="rounded up"):
            flat_cut({"bucket": (LENGTHS, shard)}, world=3)


def test_the_picture_is_small_and_the_same_each_time():
    one, other = (flat_cut({"bucket": (LENGTHS, 7)}, world=3, title="Cut") for _ in range(2))
    assert one.png == other.png and len(one.png) < 150_000
