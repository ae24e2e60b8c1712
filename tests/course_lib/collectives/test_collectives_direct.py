"""The direct forms of all_gather and reduce_scatter: the verbs' results and books, without copies.

At worlds 1 to 4, at once and asynchronously, each rank with numbers of its own.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.collectives import direct, verbs
from course_lib.ledger import ledger
from course_lib.memory import peak

OWN = 1003  # numbers of a piece


def drawn(rank: int, n: int, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 + rank)
    return torch.randn(n * OWN, generator=generator, dtype=torch.float64).to(dtype)


def both(me, async_op):
    group, n = dist.group.WORLD, me.world
    every = [drawn(rank, n) for rank in range(n)]
    mine = slice(me.rank * OWN, (me.rank + 1) * OWN)

    def done(result):
        return result.wait() if async_op else result

    x = every[me.rank].clone()
    with ledger() as book:
        total = done(direct.reduce_scatter(x, group, async_op=async_op))
    want = sum(every)[mine]
    assert torch.allclose(total, want, rtol=0, atol=1e-12)
    assert torch.equal(x, every[me.rank]), "the caller's buffer was written into"
    assert total.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    with ledger() as model:
        verbs.reduce_scatter(x, group)
    same_books(book, model, "reduce_scatter")

    whole = torch.full_like(x, torch.nan)
    whole[mine] = total
    with ledger() as book:
        got = done(direct.all_gather(whole, group, async_op=async_op))
    assert got.data_ptr() == whole.data_ptr()
    assert torch.allclose(whole, sum(every), rtol=0, atol=1e-12)
    with ledger() as model:
        verbs.all_gather(total, group)
    same_books(book, model, "all_gather")


def same_books(book, model, op):
    assert book.count() == book.count(op) == model.count(op) == 1
    for column in ("payload", "must"):
        assert book.bytes(column=column) == model.bytes(column=column), (op, column)
    moved, must = book.bytes(column="moved"), book.bytes()
    assert moved is None or must <= moved <= 1.05 * must + 4000, (op, moved, must)


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_direct_forms_are_the_verbs(pool, world, async_op):
    pool.run(world, both, async_op)


def lean(me):
    """Nothing is made but what arrives: (n-1)/n of the buffer for a sum, nothing for a gather."""
    group, n = dist.group.WORLD, me.world
    x = torch.ones(n * 100_000)
    with peak() as top:
        direct.reduce_scatter(x, group)
    assert 400_000 * (n - 1) <= top.bytes <= 400_000 * (n if n > 2 else n - 1) + 50_000, top.bytes
    with peak() as top:
        direct.all_gather(x, group)
    assert top.bytes <= 50_000, top.bytes


@pytest.mark.cpu("where ranks share a GPU, gloo goes by way of the host")
@pytest.mark.parametrize("world", [2, 3])
def test_they_copy_nothing(pool, world):
    pool.run(world, lean)


def half(me):
    """1, and then many numbers that in bfloat16 are each lost beside it."""
    x = torch.full((me.world,), 1.0 if me.rank == 0 else 2.0**-9, dtype=torch.bfloat16)
    total = direct.reduce_scatter(x, dist.group.WORLD)
    assert total.dtype == torch.bfloat16
    assert total.item() == torch.tensor(1 + 3 * 2.0**-9).bfloat16().item() > 1


def test_sixteen_bits_are_rounded_once(pool):
    pool.run(4, half)


def refused(me):
    group = dist.group.WORLD
    for wrong in (torch.ones(7), torch.ones(2, 3), torch.ones(12)[::2]):
        for form in (direct.all_gather, direct.reduce_scatter):
            with pytest.raises(ValueError, match="flat contiguous buffer of n equal pieces for 2"):
                form(wrong, group)


def test_what_is_no_flat_buffer_is_refused(pool):
    pool.run(2, refused)
