"""Wirings are drawn from the records of real runs, and say in words what they show."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.figures import Part, wirings
from course_lib.figures.wirings import sent
from course_lib.layout import cut
from course_lib.ledger import ledger
from course_lib.tensor_parallel import ColumnParallelLinear, RowParallelLinear

B, S, H, F = 2, 3, 5, 7


def call(op: str, elements: int, must: float) -> SimpleNamespace:
    return SimpleNamespace(op=op, elements=elements, payload=4 * elements, must=4 * must)


def pixels(picture):
    from PIL import Image

    return Image.open(io.BytesIO(picture.png)).convert("RGB")


def two_layers(me):
    """A gathered column layer, then a row layer that cuts: their records, forward and backward."""
    group = dist.group.WORLD
    torch.manual_seed(3)
    up = ColumnParallelLinear(H, F, group, gather_output=True, dtype=torch.float64)
    down = RowParallelLinear(F, H, group, split_input=True, dtype=torch.float64)
    x = torch.randn(B, S, H, dtype=torch.float64, requires_grad=True)
    backs = []
    with ledger() as book:
        u = up(x)
        first = book.count()
        y = down(nn.functional.gelu(u))
        forward = book.count()
        u.register_hook(lambda _: backs.append(book.count()))
        y.sum().backward()
    records, (middle,) = book.records, backs
    return [
        ("A by columns", records[:first], records[middle:], "columns"),
        ("B by rows", records[first:forward], records[forward:middle], "rows"),
    ]


@pytest.mark.parametrize("world", [2, 3])
def test_a_run_s_own_records_are_drawn_with_the_elements_that_a_rank_sends(pool, world):
    own, phi = B * S * cut(F, world)[0], B * S * H
    gather, reduce = (world - 1) * own, 2 * phi * (world - 1) // world
    runs = pool.run(world, two_layers)
    picture = wirings({"gathered": [Part(*row) for row in runs[0]]}, ranks=world)
    assert picture.alt == (
        f"Elements that rank 0 of {world} has to send. gathered. "
        f"A by columns (weight sharded by columns): forward all_gather of {gather} and backward "
        f"all_reduce of {reduce}; B by rows (weight sharded by rows): forward all_reduce of "
        f"{reduce} and backward all_gather of {gather}; in all 4 collectives, "
        f"{2 * (gather + reduce)} sent."
    )


def test_elements_are_counted_whatever_their_size_and_may_be_a_fraction():
    assert sent([call("all_reduce", 7, 7), call("all_gather", 4, 8)]) == 15
    assert sent([call("all_reduce", 5, 20 / 3)]) == pytest.approx(20 / 3)
    assert sent([call("barrier", 0, 0)]) == sent([]) == 0


def test_parts_without_a_collective_and_a_single_one_are_said():
    one = [Part("A", [call("all_reduce", 6, 6)], cut="rows"), Part("GELU")]
    words = wirings({"mine": one}, ranks=2, rank=1, title="A title").alt
    assert words == (
        "A title. Elements that rank 1 of 2 has to send. mine. A (weight sharded by rows): forward "
        "all_reduce of 6; GELU: no collective; in all 1 collective, 6 sent."
    )


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="a part or more"):
        wirings({"mine": []}, ranks=2)
    with pytest.raises(ValueError, match="not by 'diagonals'"):
        wirings({"mine": [Part("A", cut="diagonals")]}, ranks=2)


def four() -> dict[str, list[Part]]:
    calls = [call("all_reduce", 1_234_567, 1_234_567)]
    parts = [Part("A by columns", calls, calls, "columns"), Part("GELU")]
    parts.append(Part("B by rows", calls * 2, calls, "rows"))
    return {f"an order, number {i}": parts for i in range(4)}


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_picture_is_small_a_white_card_and_cuts_nothing_off(ranks):
    picture = wirings(four(), ranks=ranks, title="four")
    assert len(picture.png) < 250_000 and picture.width < 900
    image = pixels(picture)
    width, height = image.size
    edge = [(x, y) for x in range(width) for y in (0, height - 1)]
    edge += [(x, y) for x in (0, width - 1) for y in range(height)]
    assert all(image.getpixel(at) == (255, 255, 255) for at in edge)


def test_each_rank_has_a_stripe_of_a_weight_in_its_colour():
    from course_lib.figures.colours import RANKS

    for cut_by in ("columns", "rows"):
        image = pixels(wirings({"one": [Part("A", cut=cut_by)]}, ranks=3))
        wide, high = image.size
        seen = {}
        for y in range(0, high, 2):
            for x in range(0, wide, 2):
                colour = "#{:02X}{:02X}{:02X}".format(*image.getpixel((x, y)))
                if colour in RANKS[:3]:
                    seen.setdefault(colour, []).append((x, y))
        assert set(seen) == set(RANKS[:3])
        along = 0 if cut_by == "columns" else 1
        middles = [sum(at[along] for at in seen[c]) / len(seen[c]) for c in RANKS[:3]]
        across = [sum(at[1 - along] for at in seen[c]) / len(seen[c]) for c in RANKS[:3]]
        assert middles == sorted(middles) and max(across) - min(across) < 5


def test_the_same_records_give_the_same_file():
    assert wirings(four(), ranks=2).png == wirings(four(), ranks=2).png
