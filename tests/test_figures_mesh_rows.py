"""The picture of who has seen which rows: drawn from row numbers, and said in words."""

from __future__ import annotations

import io

import pytest

from course_lib.data import Batches
from course_lib.figures import mesh_rows
from course_lib.figures.colours import RANKS, of_rank


def rows_of(dp, tp, rows=7):
    """What the loader hands out on a mesh, uneven where it has to be."""
    import torch

    def one(index):
        data = torch.arange(200)
        return next(Batches(data, rows=rows, length=5, dp=(index, dp), seed=3)).rows

    return [one(rank // tp) for rank in range(dp * tp)]


def pixels(picture):
    from PIL import Image

    return Image.open(io.BytesIO(picture.png)).convert("RGB")


def test_the_words_say_which_places_each_rank_has_seen():
    assert mesh_rows({(2, 2): rows_of(2, 2)}, title="A title").alt == (
        "A title. dp = 2, tp = 2, a step of 7 rows: "
        "rank 0 at dp 0, tp 0 sees 1 to 4; rank 1 at dp 0, tp 1 sees 1 to 4; "
        "rank 2 at dp 1, tp 0 sees 5 to 7; rank 3 at dp 1, tp 1 sees 5 to 7."
    )
    # A loader that goes by rank gives tp ranks different rows, and the picture says so.
    assert mesh_rows({(1, 2): [(3, 9, 4), (9, 8)]}).alt == (
        "dp = 1, tp = 2, a step of 4 rows: rank 0 at dp 0, tp 0 sees 1 to 3; "
        "rank 1 at dp 0, tp 1 sees 2 and 4."
    )


def test_a_mesh_has_the_rows_of_each_of_its_ranks():
    with pytest.raises(ValueError, match="there is no mesh to draw"):
        mesh_rows({})
    with pytest.raises(ValueError, match="dp=2 and tp=2 has 4 ranks, and here are the rows of 3"):
        mesh_rows({(2, 2): rows_of(3, 1)})


LONG = "a title that is longer than any picture of one rank would be wide on its own card"


@pytest.mark.parametrize("title", ["", LONG], ids=["none", "long"])
def test_pictures_are_cards_that_cut_nothing_off(title):
    shapes = [[(1, 1)], [(1, 2), (2, 1), (2, 2)], [(1, 4), (2, 2), (4, 1)]]
    for some in shapes:
        picture = mesh_rows({shape: rows_of(*shape) for shape in some}, title=title)
        image = pixels(picture)
        wide, high = image.size
        edge = [image.getpixel((x, y)) for x in range(wide) for y in (0, high - 1)]
        edge += [image.getpixel((x, y)) for x in (0, wide - 1) for y in range(high)]
        assert set(edge) == {(255, 255, 255)}  # the card's own margin, all round
        assert len(picture.png) < 200_000


def test_a_rank_stands_in_its_own_colour_where_the_mesh_has_it():
    image = pixels(mesh_rows({(2, 2): rows_of(2, 2)}))
    wide, high = image.size
    found: dict[str, list[tuple[int, int]]] = {}
    for y in range(0, high, 2):
        for x in range(0, wide, 2):
            colour = "#{:02X}{:02X}{:02X}".format(*image.getpixel((x, y)))
            if colour in RANKS[:4]:
                found.setdefault(colour, []).append((x, y))
    middle = {
        rank: [
            sum(at[k] for at in found[of_rank(rank)]) / len(found[of_rank(rank)]) for k in (0, 1)
        ]
        for rank in range(4)
    }
    assert middle[0][0] < middle[1][0] - 50 and middle[2][0] < middle[3][0] - 50  # along tp
    assert middle[0][1] < middle[2][1] - 20 and middle[1][1] < middle[3][1] - 20  # down dp


def test_dark_places_are_the_rows_seen():
    """Held against a picture in which both ranks have seen all: what is light here and dark there
    is the right half of rank 0's strip, and the left half of rank 1's."""
    some, every = (
        pixels(mesh_rows({(2, 1): rows})).convert("L")
        for rows in ([(0, 1, 2), (3, 4, 5)], [(0, 1, 2, 3, 4, 5)] * 2)
    )
    wide, high = some.size
    assert some.size == every.size
    light = [
        (x, y)
        for y in range(high)
        for x in range(wide)
        if some.getpixel((x, y)) > 200 and every.getpixel((x, y)) < 40
    ]
    assert len(light) > 1000
    middle = sum(y for _, y in light) / len(light)
    upper, lower = [x for x, y in light if y < middle], [x for x, y in light if y > middle]
    assert max(lower) < min(upper)


def test_the_same_rows_give_the_same_file():
    seen = {(2, 2): rows_of(2, 2)}
    assert mesh_rows(seen).png == mesh_rows(seen).png
