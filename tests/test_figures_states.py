"""What a rank holds, by kind and stage: wide by its bytes, coloured where it is a rank's own."""

from __future__ import annotations

import io

import pytest

from course_lib.figures.colours import RANKS
from course_lib.figures.states import COPY, shown, states

KINDS = ("parameters", "moments")
PANELS = {
    "stage 0": [{"parameters": 4.0, "moments": 8.0}, {"parameters": 4.0, "moments": 8.0}],
    "stage 1": [{"parameters": 4.0, "moments": 4.0}, {"parameters": 4.0, "moments": 3.98}],
}
CUT = {"stage 1": ("moments",)}


def longest(picture, colour: str) -> int:
    """The longest run of pixels of a colour in any row, in the part without a hatch or words."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    rgb = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
    wide, high = image.size
    return max(
        sum(image.getpixel((x, y)) == rgb for x in range(wide)) for y in range(0, high // 5 * 4, 3)
    )


def test_every_number_is_told_and_whose_it_is():
    alt = states(PANELS, cut=CUT, title="Held").alt
    assert alt == (
        "Held. Bytes a parameter by rank. "
        "stage 0: rank 0 12: parameters 4; moments 8. rank 1 12: parameters 4; moments 8. "
        "stage 1: rank 0 8: parameters 4; moments 4, its own piece. "
        "rank 1 7.98: parameters 4; moments 3.98, its own piece."
    )
    shards = states(PANELS, cut=CUT, own="its shard").alt
    assert shards.count("its shard") == 2 and "its own piece" not in shards
    assert [shown(x) for x in (16.0, 10.001, 3.98, 0.25)] == ["16", "10", "3.98", "0.25"]


def test_a_piece_has_its_rank_s_colour_and_a_copy_is_grey():
    one_kind = {"cut": [{"parameters": 6.0}, {"parameters": 3.0}]}
    own = states(one_kind, cut={"cut": ("parameters",)})
    wide = [longest(own, RANKS[rank]) for rank in (0, 1)]
    assert wide[1] / wide[0] == pytest.approx(0.5, abs=0.05)
    copies = states(one_kind, cut={})
    assert longest(copies, RANKS[0]) == 0 and longest(own, COPY) < longest(copies, COPY) / 4


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="no rank to draw"):
        states({"stage 0": []}, cut={})
    with pytest.raises(ValueError, match="kind by kind"):
        states({"stage 0": [{"a": 1.0}, {"b": 1.0}]}, cut={})
    with pytest.raises(ValueError, match="no rank holds that"):
        states(PANELS, cut={"stage 1": ("masters",)})
    with pytest.raises(ValueError, match="7 kinds"):
        states({"stage 0": [dict.fromkeys("abcdefg", 1.0)]}, cut={})


def test_the_picture_is_small_and_the_same_each_time():
    one, other = (states(PANELS, cut=CUT, title="Held") for _ in range(2))
    assert one.png == other.png and len(one.png) < 150_000
