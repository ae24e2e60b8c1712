"""The pictures of what gradients hold and send: drawn from counts, and said in words."""

from __future__ import annotations

import io

import pytest
import torch

from course_lib.figures.colours import method
from course_lib.figures.gradient_memory import gradient_memory
from course_lib.figures.sent_by_k import sent_by_k

HELD = {
    "whole": [[8000, 8000, 9000], [8000, 8000, 8000]],
    "cut": [[0, 1000, 2000], [4000, 5000, 4000]],
}
SENT = {"whole": {1: 2.0, 2: 2.0, 4: 2.0}, "cut": {1: 2.0, 4: 5.0, 2: 3.0}}


def pixels(picture) -> torch.Tensor:
    """(high, wide, 3)"""
    from PIL import Image

    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(
        image.size[1], image.size[0], 3
    )


def heights(picture, way: int) -> list[float]:
    """The middle height of the way's colour in each column that has some, the card's bottom 0."""
    image = pixels(picture)
    wanted = torch.tensor([int(method(way)[i : i + 2], 16) for i in (1, 3, 5)])
    found = (image == wanted).all(-1)  # (high, wide)
    count = found.sum(0)
    up = torch.arange(len(image), 0, -1)[:, None] * found
    return (up.sum(0)[count > 0] / count[count > 0]).tolist()


def test_the_words_of_the_memory_say_where_each_backward_begins_ends_and_is_highest():
    assert gradient_memory(HELD, title="A title").alt == (
        "A title. Gradients held. "
        "whole: in backward 1 from 8 kB to 9 kB, at most 9 kB; in backward 2 from 8 kB to 8 kB, at "
        "most 8 kB. cut: in backward 1 from 0 bytes to 2 kB, at most 2 kB; in backward 2 from "
        "4 kB to 4 kB, at most 5 kB."
    )


def test_the_words_of_the_bytes_go_by_k():
    assert sent_by_k(SENT, unit="units").alt == (
        "Sent by a rank in a step, in units. whole: 2 at k = 1, 2 at k = 2, 2 at k = 4. "
        "cut: 2 at k = 1, 3 at k = 2, 5 at k = 4."
    )


def test_ways_that_cannot_stand_in_one_picture_are_refused():
    with pytest.raises(ValueError, match="a backward or more"):
        gradient_memory({})
    with pytest.raises(ValueError, match="a backward or more"):
        gradient_memory({"none": [[]]})
    with pytest.raises(ValueError, match=r"'b' has \[2\] counts in its backwards, and the first"):
        gradient_memory({"a": [[1, 2, 3]], "b": [[1, 2]]})
    with pytest.raises(ValueError, match="a way or more"):
        sent_by_k({}, unit="units")
    with pytest.raises(
        ValueError, match=r"'b' was measured for k in \[1\], the first for \[1, 2\]"
    ):
        sent_by_k({"a": {1: 2, 2: 2}, "b": {1: 2}}, unit="units")


def test_who_holds_less_is_drawn_lower_and_in_a_colour_of_its_own():
    picture = gradient_memory({name: HELD[name] for name in ("whole", "cut")})
    whole, cut = heights(picture, 0), heights(picture, 1)
    assert len(whole) > 50 and len(cut) > 50
    # the legend's sample lies above all
    body = sorted(cut)[: int(0.8 * len(cut))]
    assert max(body) < sorted(whole)[len(whole) // 2]
    assert max(body) - min(body) > 50  # it climbs


def test_the_line_of_what_is_sent_each_time_climbs():
    lines = [heights(sent_by_k({"way": sent}, unit="units"), 0) for sent in SENT.values()]
    right_half = [line[len(line) // 2 :] for line in lines]
    assert max(right_half[0]) - min(right_half[0]) < 12  # flat, but for the size of its marks
    assert max(right_half[1]) - min(right_half[1]) > 100


@pytest.mark.parametrize("title", ["", "What is held, and what is sent, by stages 0, 1 and 2"])
def test_pictures_are_cards_that_cut_nothing_off(title):
    for picture in (gradient_memory(HELD, title=title), sent_by_k(SENT, unit="Ψ", title=title)):
        image = pixels(picture)
        for edge in (image[0], image[-1], image[:, 0], image[:, -1]):
            assert (edge == 255).all()
        assert len(picture.png) < 200_000


def test_the_same_numbers_give_the_same_file():
    assert gradient_memory(HELD).png == gradient_memory(HELD).png
    assert sent_by_k(SENT, unit="units").png == sent_by_k(SENT, unit="units").png
