"""f and g as they are drawn are those of the library: who sends in which direction, and where."""

from __future__ import annotations

import pytest
import torch

from course_lib import ranks
from course_lib.figures import colours, f_and_g
from course_lib.figures.f_and_g import ALL_REDUCE, DOES, IDENTITY
from course_lib.ledger import ledger
from course_lib.tensor_parallel import conjugates
from tests.test_figures_statement import pixels


def sent(me):
    """What each of the two sends, forward and backward."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    group = ranks.axis(mesh, "tp")
    found = {}
    for name, operation in (("f", conjugates.copy), ("g", conjugates.reduce)):
        x = torch.ones(3, 2, requires_grad=True)
        with ledger(mesh) as forward:
            y = operation(x, group)
        with ledger(mesh) as backward:
            y.backward(torch.ones_like(y))
        found[name] = tuple([r.op for r in book.records] for book in (forward, backward))
    return found


def test_the_chips_say_what_the_ledger_books(pool):
    for found in pool.run(2, sent):
        for name, does in DOES.items():
            booked = tuple(ALL_REDUCE if ops == ["all_reduce"] else IDENTITY for ops in found[name])
            assert booked == does
            assert all(ops in ([], ["all_reduce"]) for ops in found[name])


def test_each_is_the_other_backwards():
    assert DOES["f"] == DOES["g"][::-1]


def test_the_words_follow_the_arrows():
    words = f_and_g(3, first="Wqkv", second="Wo", between="attention").alt
    assert "3 ranks side by side" in words
    assert "its columns of Wqkv, applies attention to its own part" in words
    assert "f is identity in the forward and all-reduce in the backward" in words
    assert "g is all-reduce in the forward and identity in the backward" in words


def test_the_output_has_the_name_that_the_page_gives_it():
    words = f_and_g(out="Y").alt
    assert "has a partial sum of Y; g completes it and Y is replicated" in words
    assert "the gradient dY is replicated" in words and "Z" not in words
    assert f_and_g(out="Y").png != f_and_g().png


@pytest.mark.parametrize("n", [2, 4])
def test_the_picture_is_small_and_has_every_rank(n: int):
    picture = f_and_g(n)
    assert len(picture.png) < 200_000
    image = pixels(picture)
    seen = {colour: count for count, colour in image.getcolors(1_000_000)}
    for rank in range(n):
        colour = tuple(int(colours.of_rank(rank)[i : i + 2], 16) for i in (1, 3, 5))
        assert seen[colour] > 1000
    width, height = image.size
    assert all(image.getpixel((x, y)) == (255,) * 3 for x in range(width) for y in (0, height - 1))
    assert all(image.getpixel((x, y)) == (255,) * 3 for y in range(height) for x in (0, width - 1))


@pytest.mark.parametrize("n", [1, 5])
def test_other_numbers_of_ranks_are_refused(n: int):
    with pytest.raises(ValueError, match="2 to 4"):
        f_and_g(n)
