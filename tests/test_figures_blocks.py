"""A picture of blocks is of what the ranks hold: what a layout says and they do not is refused."""

from __future__ import annotations

import io

import pytest
import torch

from course_lib.figures import blocks, colours
from course_lib.layout import LayoutError, span

COLUMNS = "X[b, h] W[h, f@tp] -> Y[b, f@tp]"
ROWS = "X[b, h@tp] W[h@tp, f] -> Y[b, f]{tp}"


def held(way: str, n: int, b: int = 4, h: int = 7, f: int = 5) -> list[dict[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(3)
    x, w = torch.randn(b, h, generator=made), torch.randn(h, f, generator=made)
    found = []
    for rank in range(n):
        over = slice(*span(f if way == COLUMNS else h, n, rank))
        mine = (x, w[:, over]) if way == COLUMNS else (x[:, over], w[over])
        found.append({"X": mine[0], "W": mine[1], "Y": mine[0] @ mine[1], "B": w[0]})
    return found


def pixels(picture):
    from PIL import Image

    return Image.open(io.BytesIO(picture.png)).convert("RGB")


def area(picture, rank: int) -> int:
    """How many pixels have the colour of a rank."""
    wanted = tuple(int(colours.of_rank(rank)[i : i + 2], 16) for i in (1, 3, 5))
    return sum(count for count, colour in pixels(picture).getcolors(1_000_000) if colour == wanted)


def test_the_words_say_who_holds_what():
    assert blocks(COLUMNS, held(COLUMNS, 3), title="Cut").alt == (
        "Cut. Matrices to scale, each block in the colour of its rank. "
        "X[b, h] W[h, f@tp] -> Y[b, f@tp]: X, 4 × 7, is replicated; "
        "W, 7 × 5, has its columns sharded: 2 on rank 0, 2 on rank 1, 1 on rank 2; "
        "Y, 4 × 5, has its columns sharded: 2 on rank 0, 2 on rank 1, 1 on rank 2."
    )
    words = blocks(ROWS, held(ROWS, 3)).alt
    assert "W, 7 × 5, has its rows sharded: 3 on rank 0, 3 on rank 1, 1 on rank 2" in words
    assert "Y, 4 × 5, is a partial sum on each rank: an all-reduce over tp completes it." in words


def test_a_bias_has_one_dim():
    cut = [{"B": torch.arange(5.0)[slice(*span(5, 3, r))]} for r in range(3)]
    assert (
        "B, 5, has its elements sharded: 2 on rank 0, 2 on rank 1, 1" in blocks("B[f@tp]", cut).alt
    )
    assert "B, 5, is replicated" in blocks("B[f]", held(ROWS, 3)).alt


def test_blocks_are_to_scale():
    rule = [{"R": torch.arange(12.0)}] * 2  # the longest in both pictures
    four, eight = (
        blocks(["W[h@tp, f]", "R[k]"], [{**r, "W": torch.randn(h // 2, 5)} for r in rule])
        for h in (4, 8)
    )
    assert 1.8 < area(eight, 0) / area(four, 0) < 2.2  # the label takes a little of each


def test_a_rank_that_holds_nothing_is_told_and_not_drawn():
    few = held(COLUMNS, 3, f=2)
    picture = blocks(COLUMNS, few)
    assert "1 on rank 0, 1 on rank 1, 0 on rank 2" in picture.alt
    assert area(picture, 0) > 1000
    assert area(picture, 2) == 0


def test_a_layout_that_the_tensors_do_not_have_is_refused():
    with pytest.raises(LayoutError, match="X has shape"):
        blocks(COLUMNS, held(ROWS, 3))
    balanced = held(ROWS, 3)
    x = torch.cat([mine["X"] for mine in balanced], 1)
    for mine, part in zip(balanced, x.split([3, 2, 2], 1), strict=True):
        mine["X"] = part
    with pytest.raises(LayoutError, match="as torch\\.chunk does"):
        blocks("X[b, h@tp]", balanced)
    with pytest.raises(ValueError, match="not every rank has handed over its Z"):
        blocks("Z[b]", held(ROWS, 3))


def test_a_sum_that_was_taken_is_not_owed_and_copies_have_to_be_alike():
    summed = held(ROWS, 3)
    total = sum(mine["Y"] for mine in summed)
    with pytest.raises(
        ValueError, match="declared replicated, and the ranks hold different values"
    ):
        blocks("Y[b, f]", summed)
    for mine in summed:
        mine["Y"] = total
    with pytest.raises(ValueError, match="was it all-reduced already"):
        blocks(ROWS, summed)
    assert "Y, 4 × 5, is replicated" in blocks("X[b, h@tp] W[h@tp, f] -> Y[b, f]", summed).alt


def test_what_cannot_be_drawn_says_so():
    deep = [{"X": torch.randn(2, 3, 4)}] * 2
    with pytest.raises(ValueError, match="one dim or two"):
        blocks("X[b, s, h]", deep)
    with pytest.raises(ValueError, match="cannot be drawn"):
        blocks("X[b@dp, h]", [{"X": torch.randn(2, 3)}] * 2)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_each_picture_is_small_a_white_card_and_cuts_nothing_off(n):
    lines = [ROWS, "B[f]", "X[b, h@tp]"]
    picture = blocks(lines, held(ROWS, n, b=3, h=9, f=2), title="A title for them all")
    assert len(picture.png) < 200_000
    image = pixels(picture)
    width, height = image.size
    edge = [(x, y) for x in range(width) for y in (0, height - 1)]
    edge += [(x, y) for x in (0, width - 1) for y in range(height)]
    assert all(image.getpixel(at) == (255, 255, 255) for at in edge)
    assert all(area(picture, rank) > 500 for rank in range(n))


def test_the_same_tensors_give_the_same_file():
    assert blocks(ROWS, held(ROWS, 3)).png == blocks(ROWS, held(ROWS, 3)).png


def test_a_partial_sum_is_followed_by_its_all_reduce_where_it_is_a_result():
    cut = held(ROWS, 2)
    for mine in cut:
        mine["Z"] = mine["Y"] @ torch.ones(5, 2)
    result, factor = "Y[b, f]{tp}", "Y[b, f]{tp} V[f, k] -> Z[b, k]{tp}"
    for mine in cut:
        mine["V"] = torch.ones(5, 2)
    assert "an all-reduce over tp completes it" in blocks(result, cut).alt
    words = blocks(factor, cut).alt
    assert "Y, 4 × 5, is a partial sum on each rank; V" in words
    assert "Z, 4 × 2, is a partial sum on each rank: an all-reduce over tp completes it." in words
    # The all-reduced result is drawn as well, in the grey of what is replicated.
    assert grey(blocks(result, cut)) > 5000
    assert grey(blocks("X[b, h@tp]", cut)) < 500  # a few pixels of its letters


def grey(picture) -> int:
    counts = {colour: count for count, colour in pixels(picture).getcolors(1_000_000)}
    return counts.get((233, 233, 233), 0)


def test_what_is_replicated_is_plain_grey():
    """A hatch is a rank's: what all ranks hold has none."""
    image = pixels(blocks("B[f]", held(ROWS, 2)))
    _, height = image.size
    shade = (233, 233, 233)
    row = max(range(height), key=lambda y: _length_of(image, y, shade))
    spots = [x for x in range(image.size[0]) if image.getpixel((x, row)) == shade]
    assert len(spots) > 100
    assert spots == list(range(spots[0], spots[-1] + 1))  # no stripe, and no letter in this row


def _length_of(image, y: int, shade) -> int:
    return sum(image.getpixel((x, y)) == shade for x in range(image.size[0]))
