"""The formula sheet against schedules that are carried out, message by message, in one process."""

from __future__ import annotations

import pytest

from course_lib.ledger import forms

pytestmark = pytest.mark.cpu("formulas")

WORLDS = (1, 2, 3, 4, 7)


def ring_reduce_scatter(n: int, pieces: list[int]) -> list[int]:
    """Bytes that each rank sends when piece p goes round and ends, summed, with rank p."""
    sent = [0] * n
    for piece, size in enumerate(pieces):
        for hop in range(1, n):  # it starts with its owner's successor and goes round
            sent[(piece + hop) % n] += size
    return sent


def ring_all_gather(n: int, pieces: list[int]) -> list[int]:
    """Bytes that each rank sends when every piece goes once round, from its owner."""
    sent = [0] * n
    for piece, size in enumerate(pieces):
        for hop in range(n - 1):
            sent[(piece + hop) % n] += size
    return sent


def chain(n: int, root: int, size: int) -> list[int]:
    """Bytes that each rank sends when the root's tensor is passed on until all have it."""
    sent = [0] * n
    for hop in range(n - 1):
        sent[(root + hop) % n] += size
    return sent


@pytest.mark.parametrize("n", WORLDS)
def test_all_reduce_is_a_reduce_scatter_and_an_all_gather(n):
    piece = 12
    whole = n * piece
    both = [
        a + b
        for a, b in zip(
            ring_reduce_scatter(n, [piece] * n), ring_all_gather(n, [piece] * n), strict=True
        )
    ]
    assert both == [forms.all_reduce(n, whole)] * n
    assert isinstance(forms.all_reduce(n, whole), int)


def test_all_reduce_of_a_length_that_does_not_divide_is_a_fraction():
    assert forms.all_reduce(3, 10) == pytest.approx(40 / 3, rel=1e-15)
    assert isinstance(forms.all_reduce(3, 10), float)
    assert forms.all_reduce(8, 2**40) == 7 * 2**38


@pytest.mark.parametrize("n", WORLDS)
def test_reduce_scatter_sends_all_but_the_own_piece(n):
    pieces = [8 * (rank + 1) for rank in range(n)]
    assert ring_reduce_scatter(n, pieces) == [
        forms.reduce_scatter(sum(pieces), own) for own in pieces
    ]


@pytest.mark.parametrize("n", WORLDS)
def test_all_gather_sends_as_many_pieces_as_there_are_others(n):
    assert ring_all_gather(n, [20] * n) == [forms.all_gather(n, 20)] * n
    # Uneven pieces: a rank that tells each of the others sends its own; the sum is the ring's.
    pieces = [4 * (rank + 1) for rank in range(n)]
    assert sum(forms.all_gather(n, own) for own in pieces) == sum(ring_all_gather(n, pieces))


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize("root", range(3))
def test_a_broadcast_is_a_chain_and_a_reduce_the_chain_backwards(n, root):
    root %= n
    assert [forms.broadcast(n, rank, root, 24) for rank in range(n)] == chain(n, root, 24)
    reduced = [forms.reduce(rank, root, 24) for rank in range(n)]
    assert reduced[root] == 0
    assert sum(reduced) == (n - 1) * 24


@pytest.mark.parametrize("n", WORLDS)
def test_scatter_and_gather_cost_the_same_at_opposite_ends(n):
    pieces, root = [16 + rank for rank in range(n)], n - 1
    given = [forms.scatter(rank, root, sum(pieces), pieces[rank]) for rank in range(n)]
    taken = [forms.gather(rank, root, pieces[rank]) for rank in range(n)]
    assert given == [0] * (n - 1) + [sum(pieces[:-1])]
    assert taken == [*pieces[:-1], 0]


def test_must_finds_the_form_of_every_op():
    of = {op: forms.must(op, 3, 1, 900, own=200, root=0) for op in forms.OPS}
    assert of == {
        "all_reduce": 1200,
        "all_gather": 1800,
        "reduce_scatter": 700,
        "all_to_all": 700,
        "broadcast": 900,
        "reduce": 900,
        "scatter": 0,
        "gather": 900,
        "send": 900,
        "recv": 0,
        "barrier": 0,
    }
    with pytest.raises(ValueError, match="'allreduce' has no closed form; the ops are all_reduce,"):
        forms.must("allreduce", 2, 0, 4)
