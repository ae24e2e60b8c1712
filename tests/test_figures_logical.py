"""A logical tensor element by element: who has each, and boxes that cannot be drawn."""

from __future__ import annotations

import pytest

from course_lib.figures.logical import logical, owner_of_each
from course_lib.layout import Box, flat, flat_boxes

SHAPE = (3, 5)


def shards(world):
    return [flat_boxes(SHAPE, *flat(15, world).span(rank)) for rank in range(world)]


def test_a_flat_shard_goes_on_in_the_next_row():
    assert owner_of_each(SHAPE, shards(2)) == [0] * 8 + [1] * 7


def test_columns_come_back_in_every_row():
    held = [[Box((0, 0), (3, 2))], [Box((0, 2), (3, 2))]]
    assert owner_of_each(SHAPE, held) == [0, 0, 1, 1, None] * 3


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ([[Box((0, 0), (2, 2))], [Box((1, 1), (1, 1))]], "of rank 0 and of rank 1"),
        ([[Box((2, 0), (2, 5))]], "beyond a tensor of shape"),
        ([[Box((0, 4), (1, 2))]], "beyond a tensor of shape"),
    ],
)
def test_boxes_are_inside_and_do_not_overlap(held, said):
    with pytest.raises(ValueError, match=said):
        logical(SHAPE, {"": held})


def test_a_panel_is_said_with_elements_and_boxes():
    columns = [[Box((0, 0), (3, 2))], [Box((0, 2), (3, 2))]]
    picture = logical(SHAPE, {"by two": shards(2), "columns": columns}, title="Layouts")
    assert picture.alt == (
        "Layouts. A logical tensor of shape (3, 5), element by element. "
        "by two: rank 0 has 8 elements in 2 boxes, rank 1 has 7 elements in 2 boxes. "
        "columns: rank 0 has 6 elements in 1 box, rank 1 has 6 elements in 1 box, 3 are in no box."
    )
    assert len(picture.png) < 200_000


def test_a_tensor_of_one_dim_is_not_drawn():
    with pytest.raises(ValueError, match="two dims"):
        logical((5,), {"x": []})
