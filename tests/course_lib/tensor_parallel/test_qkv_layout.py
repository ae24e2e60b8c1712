"""Whose heads are whose, and where they lie in a weight of all q, all k and all v.

The oracle is a list of names: row r of a weight says ("q", head, number in the head), and a cut is
held against where those names have gone. No rank is needed.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.tensor_parallel import qkv_layout as layout
from tests.course_lib.tensor_parallel.parts import said


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
        (3, 3, 4, "3 heads cannot be distributed over 4 ranks, because 1 of them would have none"),
        (6, 4, 2, "6 query heads cannot be divided among 4 key/value heads"),
        (6, 2, 3, "2 key/value heads cannot be shared by 3 ranks: 3 is not a multiple of 2"),
        (6, 0, 2, "6 query heads cannot be divided among 0"),
    ],
)
def test_heads_that_cannot_be_placed_are_named(heads, kv_heads, n, words):
    assert words in said(ValueError, layout.shares, heads, kv_heads, n)
    if "multiple of 2" in words:
        assert "one of these numbers of ranks on this axis: 1, 2" in said(
            ValueError, layout.shares, heads, kv_heads, n
        )


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(placements(), st.integers(1, 3))
def test_the_spans_are_the_rows_of_a_ranks_heads(placed, size):
    heads, kv_heads, n = placed
    joined = [("q", h, p) for h in range(heads) for p in range(size)]
    joined += [(part, h, p) for part in "kv" for h in range(kv_heads) for p in range(size)]
    for share in layout.shares(heads, kv_heads, n):
        want = [("q", h, p) for h in range(*share.q) for p in range(size)]
        want += [(part, h, p) for part in "kv" for h in range(*share.kv) for p in range(size)]
        spans = layout.joined_rows(share, heads, kv_heads, size)
        assert [row for start, stop in spans for row in joined[start:stop]] == want
