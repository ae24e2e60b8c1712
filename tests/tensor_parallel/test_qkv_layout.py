"""Whose heads are whose, and where they lie in the four ways of keeping q, k and v.

The oracle is a table of names: row r of a weight says ("q", head, number in the head), and every
layout and every cut is held against where those names have gone. No rank is needed.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.tensor_parallel import qkv_layout as layout
from tests.tensor_parallel.parts import made, said


@st.composite
def placements(draw):
    """(query heads, kv heads, ranks) that can be placed."""
    n, each = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    copies = draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
    kv = n // copies if copies > 1 else n + draw(st.integers(0, 5))
    if kv < n:
        each = max(each, n // kv)
    return kv * each, kv, n


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(placements())
def test_every_query_head_has_one_rank_and_its_key_value_head_beside_it(placed):
    heads, kv_heads, n = placed
    found = layout.shares(heads, kv_heads, n)
    assert len(found) == n
    assert [h for one in found for h in range(*one.q)] == list(range(heads))
    counts = [one.heads for one in found]
    assert min(counts) >= 1 and max(counts) - min(counts) <= max(1, heads // kv_heads)
    for rank, one in enumerate(found):
        each = heads // kv_heads
        assert {h // each for h in range(*one.q)} == set(range(*one.kv))
        alike = [r for r, other in enumerate(found) if set(range(*other.kv)) & set(range(*one.kv))]
        assert list(one.holders) == alike and rank in alike  # who has a part has all of it
        assert all(found[r].kv == one.kv for r in alike)
        assert len(alike) == max(1, n // kv_heads)
        # The dense rule i // each, asked with the rank's own numbers of heads, finds its kv head.
        per = one.heads // one.kv_heads
        assert one.heads == per * one.kv_heads
        for i, head in enumerate(range(*one.q)):
            assert head // each == one.kv[0] + i // per


@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "words"),
    [
        (3, 3, 4, "3 heads cannot be spread over 4 ranks: 1 of them would have no head"),
        (6, 4, 2, "6 query heads cannot be shared out over 4 key/value heads"),
        (6, 2, 3, "2 key/value heads cannot be shared by 3 ranks: 3 is not a multiple of 2"),
        (6, 0, 2, "6 query heads cannot be shared out over 0"),
    ],
)
def test_heads_that_cannot_be_placed_are_named(heads, kv_heads, n, words):
    assert words in said(ValueError, layout.shares, heads, kv_heads, n)
    if "multiple of 2" in words:
        assert "one of these numbers of ranks on this axis: 1, 2" in said(
            ValueError, layout.shares, heads, kv_heads, n
        )


def names(heads, kv_heads, size):
    """The rows of each part, as numbers that say part, head and place."""
    number = {}
    for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        for head in range(count):
            for place in range(size):
                number[part, head, place] = len(number)
    return number


def rows(number, order):
    return torch.tensor([[float(number[name])] for name in order])


def orders(heads, kv_heads, size):
    """The names in joined order and in grouped order, written out by hand."""
    each, places = heads // kv_heads, range(size)
    joined = [("q", h, p) for h in range(heads) for p in places]
    joined += [(part, h, p) for part in "kv" for h in range(kv_heads) for p in places]
    grouped = []
    for kv in range(kv_heads):
        grouped += [("q", h, p) for h in range(kv * each, (kv + 1) * each) for p in places]
        grouped += [(part, kv, p) for part in "kv" for p in places]
    return joined, grouped


SHAPES = [(6, 6, 2), (6, 3, 1), (6, 2, 3), (5, 1, 2), (8, 2, 3), (1, 1, 4)]


@pytest.mark.parametrize(("heads", "kv_heads", "size"), SHAPES)
def test_layouts_turn_into_one_another_and_back(heads, kv_heads, size):
    number = names(heads, kv_heads, size)
    by_hand = orders(heads, kv_heads, size)
    joined, grouped = (rows(number, order) for order in by_hand)
    assert torch.equal(layout.to_grouped(joined, heads, kv_heads), grouped)
    assert torch.equal(layout.from_grouped(grouped, heads, kv_heads), joined)
    q, k, v = layout.separate(joined, heads, kv_heads)
    assert torch.equal(q, rows(number, [n for n in by_hand[0] if n[0] == "q"]))
    assert torch.equal(k, rows(number, [n for n in by_hand[0] if n[0] == "k"]))
    assert torch.equal(v, rows(number, [n for n in by_hand[0] if n[0] == "v"]))
    assert torch.equal(layout.join(q, k, v), joined)
    weight = made("w", len(number), 7)
    bias = made("b", len(number))
    assert layout.to_conv1d(weight).shape == (7, len(number))
    for whole in (weight, bias):
        assert torch.equal(layout.from_conv1d(layout.to_conv1d(whole)), whole)
        assert torch.equal(
            layout.from_grouped(layout.to_grouped(whole, heads, kv_heads), heads, kv_heads), whole
        )
        assert layout.to_conv1d(whole).is_contiguous()
    assert torch.equal(layout.to_conv1d(bias), bias)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(placements(), st.integers(1, 3))
def test_the_spans_are_the_rows_of_a_ranks_heads_in_every_layout(placed, size):
    heads, kv_heads, n = placed
    by_hand = orders(heads, kv_heads, size)
    number = names(heads, kv_heads, size)
    joined, grouped = (rows(number, order) for order in by_hand)
    q, k, v = layout.separate(joined, heads, kv_heads)
    for share in layout.shares(heads, kv_heads, n):
        want = [("q", h, p) for h in range(*share.q) for p in range(size)]
        want += [(part, h, p) for part in "kv" for h in range(*share.kv) for p in range(size)]
        want = rows(number, want)

        def taken(whole, spans):
            return torch.cat([whole[start:stop] for start, stop in spans])

        in_parts = layout.separate_rows(share, size)
        separate = torch.cat([part[a:b] for part, (a, b) in zip((q, k, v), in_parts, strict=True)])
        assert torch.equal(separate, want)
        assert torch.equal(taken(joined, layout.joined_rows(share, heads, kv_heads, size)), want)
        assert torch.equal(taken(grouped, layout.grouped_rows(share, heads, kv_heads, size)), want)


@pytest.mark.parametrize(("kv_heads", "n"), [(4, 2), (6, 3), (3, 3)])
def test_a_straight_cut_is_right_for_grouped_rows_and_wrong_for_joined_ones(kv_heads, n):
    heads, size = 2 * kv_heads, 3
    number = names(heads, kv_heads, size)
    joined, grouped = (rows(number, order) for order in orders(heads, kv_heads, size))
    for rank, share in enumerate(layout.shares(heads, kv_heads, n)):
        spans = layout.grouped_rows(share, heads, kv_heads, size)
        held = {int(r) for start, stop in spans for r in grouped[start:stop]}
        assert held == {int(r) for r in grouped.chunk(n)[rank]}
        assert held != {int(r) for r in joined.chunk(n)[rank]}


def test_a_weight_of_the_wrong_length_is_named():
    said_so = said(ValueError, layout.separate, made("w", 25, 4), 4, 2)
    assert "a multiple of 4 + 2·2 = 8 rows, and this one has 25" in said_so
    assert "Conv1D" in said_so
