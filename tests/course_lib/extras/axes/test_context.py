"""Ring attention and the exchange of heads against dense attention: values, gradients, bytes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.extras.axes.head_exchange import head_exchange_attention
from course_lib.extras.axes.places import check_places, stretches, work, zigzag
from course_lib.extras.axes.ring_attention import ring_attention
from course_lib.ledger import ledger
from tests.course_lib.tensor_parallel.parts import close, made, said

B, D, W = 2, 3, 8  # rows, head size, bytes of float64
CUTS = {"stretches": stretches, "zigzag": zigzag}


def dense(label, heads, kv, s, device):
    """q, k, v of the whole sequence, the output's gradient, and what plain attention makes."""
    sizes = ((heads, "q"), (kv, "k"), (kv, "v"))
    qkv = [made((label, name), B, h, s, D, device=device, grad=True) for h, name in sizes]
    owed = made((label, "owed"), B, heads, s, D, device=device)
    out = F.scaled_dot_product_attention(*qkv, is_causal=True, enable_gqa=True)
    out.backward(owed)
    return qkv, owed, out


def own_part(qkv, places):
    return [x.detach()[:, :, places].clone().requires_grad_() for x in qkv]


def ring(me, cut, s, heads, kv):
    group = dist.group.WORLD
    n, rank = me.world, me.rank
    places = CUTS[cut](s, n)
    own = places[rank]
    qkv, owed, want = dense("ring", heads, kv, s, me.device)
    mine = own_part(qkv, own)
    with ledger() as book:
        got = ring_attention(*mine, group, places)
        got.backward(owed[:, :, own])
    close("out", got, want[:, :, own])
    for name, part, whole in zip("qkv", mine, qkv, strict=True):
        close(f"d{name}", part.grad, whole.grad[:, :, own])
    row = 2 * B * kv * D * W  # a token's key and value
    past = [len(places[r]) * row for r in range(n) if r != (rank + 1) % n]
    back = [len(places[r]) * row for r in range(n) if r != rank]
    assert book.bytes("send", phase="forward") == sum(past)
    assert book.bytes("send", phase="backward") == sum(past) + sum(back)
    assert book.count("send") == 3 * (n - 1) == book.count() / 2
    return len(own)


RINGS = [(1, 5, 3, 3), (2, 5, 3, 1), (3, 11, 4, 2), (4, 9, 3, 3)]


@pytest.mark.parametrize(("world", "s", "heads", "kv"), RINGS)
@pytest.mark.parametrize("cut", CUTS)
def test_a_ring_is_dense_attention(pool, world, s, heads, kv, cut):
    if cut == "zigzag" and s < 2 * world:
        s += world
    assert sum(pool.run(world, ring, cut, s, heads, kv)) == s


def exchange(me, sizes, heads, kv):
    group = dist.group.WORLD
    own = torch.arange(sum(sizes)).split(sizes)[me.rank]
    qkv, owed, want = dense("exchange", heads, kv, sum(sizes), me.device)
    mine = own_part(qkv, own)
    with ledger() as book:
        got = head_exchange_attention(*mine, group, sizes)
        got.backward(owed[:, :, own])
    close("out", got, want[:, :, own])
    for name, part, whole in zip("qkv", mine, qkv, strict=True):
        close(f"d{name}", part.grad, whole.grad[:, :, own])
    n, size, s = me.world, sizes[me.rank], sum(sizes)
    away = B * (heads + 2 * kv) // n * D * W * size * (n - 1)  # q, k, v of other ranks' heads
    home = B * heads // n * D * W * (s - size)  # the output of other ranks' tokens
    assert book.bytes("all_to_all", phase="forward") == away + home
    # Backward the same elements take the same ways back.
    away = B * heads // n * D * W * size * (n - 1)
    home = B * (heads + 2 * kv) // n * D * W * (s - size)
    assert book.bytes("all_to_all", phase="backward") == away + home
    assert book.count() == 8


@pytest.mark.parametrize(
    ("sizes", "heads", "kv"),
    [((5,), 3, 1), ((3, 2), 4, 2), ((5, 0, 2), 6, 3), ((3, 1, 4, 2), 8, 4)],
)
def test_an_exchange_of_heads_is_dense_attention(pool, sizes, heads, kv):
    pool.run(len(sizes), exchange, sizes, heads, kv)


def test_a_zigzag_balances_what_a_causal_mask_leaves_to_do():
    assert work(stretches(16, 4)) == [10, 26, 42, 58]
    assert work(zigzag(16, 4)) == [34] * 4
    for cut in CUTS.values():
        check_places(cut(11, 3), 3)
        assert sum(work(cut(11, 3))) == 11 * 12 // 2


def refused(me):
    group = dist.group.WORLD
    x = made("x", 1, 3, 4, 2)
    return [
        said(ValueError, ring_attention, x, x, x, group, stretches(10, 2)),
        said(ValueError, ring_attention, x, x[:, :2], x[:, :2], group, stretches(8, 2)),
        said(ValueError, ring_attention, x, x, x, group, stretches(8, 4)),
        said(ValueError, ring_attention, x, x, x, group, [torch.arange(4)] * 2),
        said(ValueError, head_exchange_attention, x, x, x, group, (4, 4)),
    ]


def test_what_cannot_be_shared_out_is_refused(pool):
    for rank, (length, heads, four, twice, divide) in enumerate(pool.run(2, refused)):
        if rank == 0:
            assert length.startswith("rank 0 has 5 positions, but q (1, 3, 4, 2)")
        assert "and k's heads must divide q's" in heads
        assert four.startswith("places= must assign the positions 0, 1, 2, … to 2 ranks")
        assert twice.startswith("places= must assign")
        assert (
            divide.startswith("3 heads do not divide over 2 ranks") and "ring_attention" in divide
        )
    with pytest.raises(ValueError, match="5 tokens cannot be split into 6 pieces for 3 ranks"):
        zigzag(5, 3)
    with pytest.raises(ValueError, match="2 tokens cannot be split into 3 pieces for 3 ranks"):
        stretches(2, 3)
