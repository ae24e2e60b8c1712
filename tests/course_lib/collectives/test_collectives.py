"""Every verb against a one-process reference: dims, uneven pieces, dtypes, groups, both tempos.

Every rank makes the inputs of all ranks, each different and random, so that it can compute what it
should get. What only moves must come bit by bit; what is summed within the rounding of n-1 sums.
"""

from __future__ import annotations

import time
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from course_lib import collectives as c
from course_lib import ranks
from course_lib.collectives import transport
from tests.support.reference import chunk_lengths, cuts, made, reduced, same, shape_with

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool]
# A world and the members of the group that talks (None: all of them).
GROUPS = [(1, None), (2, None), (3, None), (4, (0, 2, 3))]
TEMPOS = [pytest.param(False, id="sync"), pytest.param(True, id="async")]


class Bench:
    """What a check needs: the group, who I am in it, and a way to call in the chosen tempo."""

    def __init__(self, me, members, async_op):
        self.group = dist.group.WORLD if members is None else ranks.new_group(me, list(members))
        self.inside = members is None or me.rank in members
        self.device, self.async_op = me.device, async_op
        if self.inside:
            self.n, self.rank = self.group.size(), self.group.rank()

    def inputs(self, tag, shape, dtype):
        return [made(tag, rank, shape, dtype) for rank in range(self.n)]

    def call(self, verb, *args, **options):
        if not self.async_op:
            return verb(*args, **options)
        handle = verb(*args, **options, async_op=True)
        assert isinstance(handle, c.Handle)
        return handle.wait()


def check_all_reduce(b, dtype):
    for tag, shape in enumerate([(5, 3), (1,), (), (0, 4)]):
        xs = b.inputs(tag, shape, dtype)
        for op in ("sum", "max", "min", "product"):
            got = b.call(c.all_reduce, xs[b.rank].to(b.device), b.group, op)
            want, slack = reduced(xs, op)
            assert got.dtype == dtype
            same(f"all_reduce {op} {shape} {dtype}", got, want, slack)
            if dtype == torch.bool:  # nothing but 0 and 1 in the bytes of a bool
                assert set(got.view(torch.uint8).flatten().tolist()) <= {0, 1}


def check_all_gather(b, dtype):
    for dim in (0, 1, 2, -1):
        for tag, (_, sizes) in enumerate([(0, None), *cuts(b.n)[4:], (0, [0] * b.n)]):
            lengths = sizes or [3] * b.n
            xs = [made(tag, r, shape_with(dim, lengths[r]), dtype) for r in range(b.n)]
            mine = xs[b.rank].to(b.device)
            got = b.call(c.all_gather, mine, b.group, dim=dim, sizes=sizes)
            same(f"all_gather dim={dim} {sizes} {dtype}", got, torch.cat(xs, dim))


def check_reduce_scatter(b, dtype):
    for dim in (0, 1, -1):
        for tag, (total, sizes) in enumerate(cuts(b.n)):
            xs = b.inputs(tag, shape_with(dim, total), dtype)
            lengths = sizes or chunk_lengths(total, b.n)
            for op in ("sum", "max", "min", "product"):
                mine = xs[b.rank].to(b.device)
                got = b.call(c.reduce_scatter, mine, b.group, dim=dim, sizes=sizes, op=op)
                want, slack = reduced(xs, op)
                if slack.dim():
                    slack = slack.split(lengths, dim)[b.rank]
                want = want.split(lengths, dim)[b.rank]
                same(f"reduce_scatter {op} dim={dim} {total} {sizes} {dtype}", got, want, slack)


def check_broadcast(b, dtype):
    for tag, shape in enumerate([(4, 3), (), (0, 2)]):
        xs = b.inputs(tag, shape, dtype)
        for src in range(b.n):
            got = b.call(c.broadcast, xs[b.rank].to(b.device), b.group, src)
            same(f"broadcast from {src} {shape} {dtype}", got, xs[src])


def check_scatter(b, dtype):
    for dim in (0, 2, -2):
        for tag, (total, sizes) in enumerate(cuts(b.n)):
            xs = b.inputs(tag, shape_with(dim, total), dtype)
            lengths = sizes or chunk_lengths(total, b.n)
            for src in range(b.n):
                mine = xs[b.rank].to(b.device)
                given = (mine, None) if b.rank == src else (None, mine)
                options = {"src": src, "dim": dim, "sizes": sizes, "like": given[1]}
                got = b.call(c.scatter, given[0], b.group, **options)
                want = xs[src].split(lengths, dim)[b.rank]
                same(f"scatter from {src} dim={dim} {total} {sizes} {dtype}", got, want)


def check_gather(b, dtype):
    for dim in (0, 1, -1):
        for tag, (_, sizes) in enumerate([(0, None), *cuts(b.n)[4:]]):
            lengths = sizes or [2] * b.n
            xs = [made(tag, r, shape_with(dim, lengths[r]), dtype) for r in range(b.n)]
            for dst in range(b.n):
                got = b.call(c.gather, xs[b.rank].to(b.device), b.group, dst, dim, sizes)
                if b.rank == dst:
                    same(f"gather to {dst} dim={dim} {sizes}", got, torch.cat(xs, dim))
                else:
                    assert got is None


def check_all_to_all(b, dtype):
    # Piece j of rank i has its own shape: i+1 rows and j+2 columns, and none on the way 0 → 1.
    def shape(i, j):
        return (0, 2) if (i, j) == (0, 1) else (i + 1, j + 2)

    def piece(i, j):
        return made(10 * i + j, i, shape(i, j), dtype)

    mine = [piece(b.rank, j).to(b.device) for j in range(b.n)]
    like = [torch.empty(shape(i, b.rank)) for i in range(b.n)]
    got = b.call(c.all_to_all, mine, b.group, like=like)
    for i in range(b.n):
        same(f"all_to_all from {i} {dtype}", got[i], piece(i, b.rank))
    even = [made(j, b.rank, (3, 2), dtype).to(b.device) for j in range(b.n)]
    for i, got_piece in enumerate(b.call(c.all_to_all, even, b.group)):
        same(f"all_to_all even from {i} {dtype}", got_piece, made(b.rank, i, (3, 2), dtype))


def check_messages(b, dtype):
    # Each rank sends to the next and receives from the one before, in every shape.
    if b.n == 1:
        pytest.skip("a message needs a different rank")
    after, before = (b.rank + 1) % b.n, (b.rank - 1) % b.n
    for tag, shape in enumerate([(3, 2), (), (0, 5)]):
        x = made(tag, b.rank, shape, dtype).to(b.device)
        options = {"dtype": dtype, "device": b.device}
        if b.async_op:
            leaving = c.send(x, b.group, after, async_op=True)
            got = c.recv(shape, b.group, before, async_op=True, **options).wait()
            assert leaving.wait() is None
        else:
            if b.rank == 0:
                assert c.send(x, b.group, after) is None
            got = c.recv(shape, b.group, before, **options)
            if b.rank:
                assert c.send(x, b.group, after) is None
        same(f"message {shape} {dtype}", got, made(tag, before, shape, dtype))


CHECKS = [name.removeprefix("check_") for name in globals() if name.startswith("check_")]


def run_check(me, name, members, async_op):
    bench = Bench(me, members, async_op)
    if bench.inside:
        for dtype in DTYPES:
            globals()[f"check_{name}"](bench, dtype)
    return bench.inside


@pytest.mark.parametrize(("world", "members"), GROUPS)
@pytest.mark.parametrize("async_op", TEMPOS)
@pytest.mark.parametrize("check", CHECKS)
def test_verb(pool, check, async_op, world, members):
    inside = pool.run(world, run_check, check, members, async_op)
    assert inside == [members is None or rank in members for rank in range(world)]


def large_broadcasts(me, segment):
    """A chain of many segments, the last one short, from every rank in turn."""
    with patch.object(transport, "SEGMENT", segment):
        for src in range(me.world):
            for elements in (1, 7, 1000, 1001):
                x = torch.arange(elements, dtype=torch.float64, device=me.device) + 10 * me.rank
                got = c.broadcast(x, dist.group.WORLD, src)
                same("broadcast", got.cpu(), x.cpu() - 10 * me.rank + 10 * src)


@pytest.mark.parametrize("segment", [1, 56, 1 << 20])
@pytest.mark.parametrize("world", [3])
def test_a_broadcast_in_segments(pool, world, segment):
    pool.run(world, large_broadcasts, segment)


def agree(me):
    x = torch.randn(1001, device=me.device) * 10.0 ** torch.randint(-3, 4, (1001,)).to(me.device)
    return c.all_reduce(x, dist.group.WORLD).cpu()


@pytest.mark.parametrize("world", [3])
def test_all_ranks_get_the_same_sum_to_the_last_bit(pool, world):
    # In whichever order the terms are added, it has to be one order: weights that should be equal
    # on all ranks would drift apart otherwise.
    first, *others = pool.run(world, agree)
    assert all(torch.equal(first, other) for other in others)


def pass_the_barrier(me):
    time.sleep(0.2 * me.rank)
    came = time.monotonic()
    c.barrier(dist.group.WORLD)
    return came, time.monotonic()


@pytest.mark.cpu("no tensor is made")
@pytest.mark.parametrize("world", [1, 3])
def test_nobody_leaves_a_barrier_before_all_have_come(pool, world):
    times = pool.run(world, pass_the_barrier)
    assert min(left for _, left in times) >= max(came for came, _ in times)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("check", CHECKS)
def test_verb_on_cuda_tensors_carried_by_gloo(pool, check):
    # More ranks than this machine has GPUs: gloo carries the tensors, through the host if it must.
    world = torch.cuda.device_count() + 1
    if world > 4:  # beyond the pool: there every rank of four has a GPU of its own, and NCCL
        pytest.skip(f"{world - 1} GPUs: gloo carries tensors where ranks outnumber them")
    pool.run(world, run_check_on_cuda, check)


def run_check_on_cuda(me, name):
    assert (me.backend, me.device.type) == ("gloo", "cuda")
    run_check(me, name, None, False)
    x = torch.ones(4, device=me.device)
    results = [c.all_reduce(x, dist.group.WORLD), c.all_gather(x, dist.group.WORLD)]
    results += [c.reduce_scatter(x, dist.group.WORLD), c.broadcast(x, dist.group.WORLD)]
    assert all(result.device == me.device for result in results)
