"""A lookup is drawn from the ranks' own parts, and what is no lookup is refused."""

from __future__ import annotations

import io

import pytest
import torch
import torch.distributed as dist

from course_lib.figures import word_rows
from course_lib.figures.colours import RANKS
from course_lib.layout import span
from course_lib.tensor_parallel.embedding import VocabularyParallelEmbedding

IDS = torch.tensor([0, 212, 7, 9])


def pixels(picture):
    from PIL import Image

    return Image.open(io.BytesIO(picture.png)).convert("RGB")


def played(n: int, words: int = 300):
    """Parts and whole of the lookup, as n ranks would have them."""
    made = torch.Generator().manual_seed(2)
    whole = torch.randn(words, 5, generator=made)[IDS]
    spans = [span(words, n, r) for r in range(n)]
    parts = [torch.where(((a <= IDS) & (z > IDS))[:, None], whole, 0.0) for a, z in spans]
    return IDS, parts, whole, spans


def looked_up(me):
    group = dist.group.WORLD
    torch.manual_seed(2)
    table = VocabularyParallelEmbedding(300, 5, group)
    with torch.no_grad():
        return table.own_rows(IDS), table(IDS), (table.start, table.stop)


def test_a_lookup_on_real_ranks_is_drawn_and_told(pool):
    runs = pool.run(2, looked_up)
    parts, spans = [run[0] for run in runs], [run[2] for run in runs]
    picture = word_rows(IDS, parts, runs[0][1], spans, title="Four words")
    assert picture.alt == (
        "Four words. Looked up are the ids 0, 212, 7, 9: rank 0 holds entries 0 to 149, finds "
        "0, 7, 9 and has zeros for the rest; rank 1 holds entries 150 to 299, finds 212 and has "
        "zeros for the rest."
    )


def test_a_rank_with_zeros_alone_is_told_so():
    assert "rank 1 holds entries 100 to 199, has only zeros; rank 2" in word_rows(*played(3)).alt


def test_what_is_no_lookup_is_refused():
    ids, (first, second), whole, spans = played(2)
    with pytest.raises(ValueError, match="do not add up"):
        word_rows(ids, [first, second], whole + 1, spans)
    with pytest.raises(ValueError, match="id 0 of token 0 was found by ranks 0, 1;"):
        word_rows(ids, [first + second / 2, second / 2 + first], 2 * first + second, spans)
    with pytest.raises(ValueError, match="id 212 of token 1 was found by no rank"):
        word_rows(ids, [first, 0 * second], first, spans)


def test_each_finder_s_colour_is_in_its_row_and_in_the_sum():
    image = pixels(word_rows(*played(2)))
    wide, high = image.size
    rows: dict[str, set[int]] = {}
    for y in range(0, high, 3):
        for x in range(0, wide, 3):
            colour = "#{:02X}{:02X}{:02X}".format(*image.getpixel((x, y)))
            if colour in RANKS[:2]:
                rows.setdefault(colour, set()).add(y)
    first, second = (rows[colour] for colour in RANKS[:2])
    both = first & second  # the sum, below the ranks' own rows
    assert both and min(first) < min(second) < min(both)
    assert max(first - both) < min(second)


def test_the_picture_is_a_small_white_card_and_the_same_each_time():
    one, other = (word_rows(*played(4), title="A lookup") for _ in range(2))
    assert one.png == other.png and len(one.png) < 150_000
    image = pixels(one)
    wide, high = image.size
    edge = [(x, y) for x in range(wide) for y in (0, high - 1)]
    edge += [(x, y) for x in (0, wide - 1) for y in range(high)]
    assert all(image.getpixel(at) == (255, 255, 255) for at in edge)
