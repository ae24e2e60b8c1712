"""How the verbs are called: out of place, handles, groups, refusals, names, staging.

Whatever a verb is made of, its caller's tensors stay as they were, and a wrong call is refused
before anything is sent: one rank that raises while another waits is the worst way to learn.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from course_lib import collectives as c
from course_lib import ranks


def calls_of_all_verbs(me, x, async_op):
    """(name, what it gives) of every verb that takes a tensor; x is (world * 2, 3)."""
    group, how = dist.group.WORLD, {"async_op": async_op}
    pieces = list(x.chunk(me.world))
    yield "all_reduce", c.all_reduce(x, group, **how)
    yield "all_gather", c.all_gather(x, group, **how)
    uneven = [2 * me.world + r for r in range(me.world)]
    mine = torch.cat([x, x[: me.rank]])
    yield "all_gather uneven", c.all_gather(mine, group, sizes=uneven, **how)
    yield "reduce_scatter", c.reduce_scatter(x, group, **how)
    yield "broadcast", c.broadcast(x, group, me.world - 1, **how)
    given = (x, None) if me.rank == 0 else (None, x)
    yield "scatter", c.scatter(given[0], group, like=given[1], **how)
    yield "gather", c.gather(x, group, **how)
    yield "all_to_all", c.all_to_all(pieces, group, **how)


def tensors_in(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [] if result is None else list(result)


def leave_inputs_alone(me, async_op, layout):
    x = torch.randn(2 * me.world, 3, device=me.device)
    if layout == "transposed":
        x = torch.randn(3, 2 * me.world, device=me.device).t()
    if layout == "strided":
        x = torch.randn(2 * me.world, 6, device=me.device)[:, ::2]
    assert x.is_contiguous() == (layout == "contiguous")
    before, version, storage = x.clone(), x._version, x.untyped_storage().data_ptr()
    results = list(calls_of_all_verbs(me, x, async_op))
    for name, result in results:
        for got in tensors_in(result.wait() if async_op else result):
            assert got.untyped_storage().data_ptr() != storage, f"{name} gives x itself"
            assert got.is_contiguous(), f"{name} gives strides {got.stride()}"
            got.fill_(7)  # the caller may do with a result what they like
    assert torch.equal(x, before)
    assert (x._version, x.untyped_storage().data_ptr()) == (version, storage)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("world", [2, 3])
def test_inputs_stay_and_results_are_fresh(pool, world, async_op, layout):
    pool.run(world, leave_inputs_alone, async_op, layout)


def strided_result_is_right(me):
    x = torch.arange(12.0, device=me.device).view(3, 4).t() + 100 * me.rank  # (4, 3), by columns
    want = sum(torch.arange(12.0).view(3, 4).t() + 100 * r for r in range(me.world))
    assert torch.equal(c.all_reduce(x, dist.group.WORLD), want)
    last = me.world - 1
    got = c.broadcast(x, dist.group.WORLD, last)
    assert torch.equal(got, torch.arange(12.0).view(3, 4).t() + 100 * last)
    if me.rank == 0:
        c.send(x, dist.group.WORLD, 1)
    if me.rank == 1:
        got = c.recv((4, 3), dist.group.WORLD, 0, device=me.device)
        assert torch.equal(got, torch.arange(12.0).view(3, 4).t())


@pytest.mark.parametrize("world", [2, 3])
def test_a_transposed_tensor_arrives_as_itself(pool, world):
    pool.run(world, strided_result_is_right)


def many_in_flight(me):
    group, n = dist.group.WORLD, me.world
    base = torch.arange(2.0 * n, device=me.device).view(2 * n, 1)
    xs = [base + 10 * turn + me.rank for turn in range(6)]
    handles = [c.all_reduce(x, group, async_op=True) for x in xs[:2]]
    handles += [c.reduce_scatter(x, group, async_op=True) for x in xs[2:4]]
    handles += [c.all_gather(x, group, dim=1, async_op=True) for x in xs[4:]]
    for x in xs[:2]:  # a verb that reduces has taken its copy by the time it returns
        x.fill_(float("nan"))
    results = [None] * 6
    for turn in (3, 0, 5, 1, 4, 2) if me.rank % 2 else (5, 4, 3, 2, 1, 0):
        results[turn] = handles[turn].wait()
        assert handles[turn].wait() is results[turn]
        assert handles[turn].is_completed()
    for turn, got in enumerate(results):
        want = torch.cat([base + 10 * turn + r for r in range(n)], 1)
        if turn < 4:
            want = want.sum(1, keepdim=True)
        if turn in (2, 3):
            want = want[2 * me.rank : 2 * me.rank + 2]
        assert torch.equal(got, want), f"turn {turn}"


@pytest.mark.parametrize("world", [2, 3])
def test_several_in_flight_waited_in_another_order(pool, world):
    pool.run(world, many_in_flight)


def wait_for_a_slow_neighbour(me):
    group = dist.group.WORLD
    x = torch.ones(4, device=me.device)
    if me.rank == 1:
        c.recv((1,), group, 0, device=me.device)
    handle = c.all_reduce(x, group, async_op=True)
    unfinished = not handle.is_completed()
    if me.rank == 0:
        c.send(x[:1], group, 1)
    handle.wait()
    return unfinished, handle.is_completed()


def test_an_async_verb_does_not_wait(pool):
    # Rank 0 lets rank 1 begin only after its own call has returned: a call that waited would hang.
    first, second = pool.run(2, wait_for_a_slow_neighbour, timeout=9)
    assert first == (True, True)
    assert second[1] is True


def roots_are_numbered_in_the_group(me):
    group = ranks.new_group(me, [1, 3])
    if me.rank in (1, 3):
        x = torch.tensor([float(me.rank)], device=me.device)
        assert c.broadcast(x, group, 0).item() == 1.0
        assert c.broadcast(x, group, 1).item() == 3.0
        gathered = c.gather(x, group, 1)
        assert (gathered is None) == (me.rank == 1)
        if me.rank == 1:
            c.send(x, group, 1)
        else:
            assert c.recv((1,), group, 0, device=me.device).item() == 1.0
    else:
        with pytest.raises(ValueError, match="this rank is not in the group"):
            c.all_reduce(torch.ones(1), group)


def test_src_and_dst_count_within_the_group(pool):
    pool.run(4, roots_are_numbered_in_the_group)


def refused(me):
    """Every wrong call raises on the rank that makes it, before anything is sent."""
    group, n, r, rows = dist.group.WORLD, me.world, me.rank, 2 * me.world
    x = torch.ones(rows, 3, device=me.device)
    wanted = x.clone().requires_grad_()
    cases = [
        (ValueError, r"op='mean' is not a reduction; choose from sum, max, min, product"),
        (lambda: c.all_reduce(x, group, "mean"), lambda: c.reduce_scatter(x, group, op="mean")),
        (ValueError, "this rank is not in the group that it passed"),
        (lambda: c.all_reduce(x, None), lambda: c.barrier(None), lambda: c.gather(x, None)),
        (ValueError, rf"src={n} is not in a group of {n}; its ranks are 0 … {n - 1}"),
        (lambda: c.broadcast(x, group, n), lambda: c.scatter(x, group, n, like=x)),
        (ValueError, rf"dst=-1 is not in a group of {n}"),
        (lambda: c.gather(x, group, -1), lambda: c.send(x, group, -1)),
        (ValueError, rf"src={r} is this rank itself; a message needs a different rank"),
        (lambda: c.recv((1,), group, r),),
        (ValueError, rf"dst={r} is this rank itself"),
        (lambda: c.send(x, group, r),),
        (
            ValueError,
            rf"reduce_scatter: the tensor has {rows} along dim 0, .* add up to {rows + 1}",
        ),
        (lambda: c.reduce_scatter(x, group, sizes=[2] * (n - 1) + [3]),),
        (ValueError, rf"scatter: the tensor has 3 along dim 1, .* add up to {n}"),
        (lambda: c.scatter(x, group, dim=1, sizes=[1] * n, like=x),) if n != 3 else (),
        (ValueError, rf"rank {r} holds {2 * n} along dim 0, but sizes=.* gives it 1"),
        (lambda: c.all_gather(x, group, sizes=[1] * n), lambda: c.gather(x, group, sizes=[1] * n)),
        (ValueError, rf"must contain one length, 0 or more, for each of {n} ranks"),
        (
            lambda: c.all_gather(x, group, sizes=[2 * n] * (n + 1)),
            lambda: c.reduce_scatter(x, group, sizes=[-1] + [0] * (n - 1)),
            lambda: c.scatter(x, group, sizes=[], like=x),
        ),
        (
            ValueError,
            rf"all_to_all among {n} ranks takes {n} pieces, one per rank, but got {n + 1}",
        ),
        (lambda: c.all_to_all([x] * (n + 1), group),),
        (ValueError, rf"but got {n} with 0 shapes in like="),
        (lambda: c.all_to_all([x] * n, group, like=[]),),
        (ValueError, r"pieces of one dtype, but got torch.float32, torch.int64"),
        (lambda: c.all_to_all([x] * (n - 1) + [x.long()], group),) if n > 1 else (),
        (ValueError, rf"scatter from rank 0: rank {r} must pass"),
        (lambda: c.scatter(None, group),),
        (ValueError, "works along a dim, but this tensor has none"),
        (
            lambda: c.all_gather(x.sum(), group),
            lambda: c.reduce_scatter(x.sum(), group),
            lambda: c.gather(x.sum(), group),
            lambda: c.scatter(x.sum(), group, like=x.sum()),
        ),
        (IndexError, "Dimension out of range"),
        (lambda: c.all_gather(x, group, dim=2), lambda: c.reduce_scatter(x, group, dim=-3)),
        (TypeError, "all_reduce takes a tensor, but got a float"),
        (lambda: c.all_reduce(1.0, group),),
        (RuntimeError, r"has no backward, .*lesson 03.*x.detach\(\)"),
        (
            lambda: c.all_reduce(wanted, group),
            lambda: c.all_gather(wanted, group),
            lambda: c.reduce_scatter(wanted, group),
            lambda: c.broadcast(wanted, group),
            lambda: c.scatter(wanted, group, like=wanted),
            lambda: c.gather(wanted, group),
            lambda: c.all_to_all([wanted] * n, group),
            lambda: c.send(wanted, group, (r + 1) % n) if n > 1 else c.gather(wanted, group),
        ),
    ]
    for (kind, words), wrong_calls in zip(cases[::2], cases[1::2], strict=True):
        for wrong in wrong_calls:
            with pytest.raises(kind, match=words):
                wrong()
            assert c.current.get() is None
    return c.all_reduce(torch.ones(1, device=me.device), group).item()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_wrong_calls_are_refused_and_leave_the_group_sound(pool, world):
    assert pool.run(world, refused) == [world] * world


def announced(me):
    """Each call's Verb, as an observer inside torch's own call sees it."""
    seen = []
    real = dist.all_to_all_single

    def observe(*args, **kwargs):
        seen.append(c.current.get())
        return real(*args, **kwargs)

    with patch.object(dist, "all_to_all_single", observe):
        x = torch.zeros(7, 3, dtype=torch.float64, device=me.device)
        c.reduce_scatter(x, dist.group.WORLD)
        c.reduce_scatter(x, dist.group.WORLD)
        c.gather(x[: me.rank], dist.group.WORLD, 1, sizes=[0, 1, 2])
    assert c.current.get() is None
    assert seen[0] != seen[1]
    return [(v.op, v.elements, v.payload, v.sizes, v.root, v.group.size()) for v in seen]


def test_a_verb_announces_itself_while_it_is_issued(pool):
    row = 3 * 8
    for rank, seen in enumerate(pool.run(3, announced)):
        scattered = ("reduce_scatter", 21, 7 * row, (3 * row, 3 * row, row), None, 3)
        gathered = ("gather", 3 * rank, rank * row, (0, row, 2 * row), 1, 3)
        assert seen == [scattered, scattered, gathered]


def gathered_into(me, async_op):
    """all_gather in memory of the caller's: there and nowhere else, whatever the dtype."""
    group, n = dist.group.WORLD, me.world
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for shape in ((5,), (2, 3), (0,)):
            x = torch.randn(shape, device=me.device).to(dtype)
            whole = torch.full((n * shape[0], *shape[1:]), 7.0, dtype=dtype, device=me.device)
            around = torch.full((whole.numel() + 2,), 7.0, dtype=dtype, device=me.device)
            for into in (whole, around[1:-1].view(whole.shape)):
                got = c.all_gather(x, group, into=into, async_op=async_op)
                got = got.wait() if async_op else got
                assert got is into
                assert torch.equal(into, c.all_gather(x, group))
            assert around[0] == around[-1] == 7.0
    x = torch.ones(3, device=me.device)
    joined, unlike = "joined along dim 0", "must be contiguous, of shape"
    wrong = [
        (joined, x[:, None], torch.empty(3 * n, 1), {"dim": 1}),
        (unlike, x, torch.empty(3 * n + 1), {}),
        (unlike, x, torch.empty(n, 3), {}),
        (unlike, x, torch.empty(3 * n, dtype=torch.float64), {}),
        (unlike, x, torch.empty(3 * n, 2)[:, 0], {}),
        ("x's own memory", (own := torch.ones(3 * n))[:3], own, {}),
    ]
    if n > 1:
        sizes = [r + 1 for r in range(n)]
        wrong.append((joined, torch.ones(me.rank + 1), torch.empty(sum(sizes)), {"sizes": sizes}))
    for words, piece, into, options in wrong:
        with pytest.raises(ValueError, match=words):
            c.all_gather(piece.to(me.device), group, into=into, **options)
    return c.all_reduce(torch.ones(1, device=me.device), group).item()


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_gather_into_memory_of_the_callers(pool, world, async_op):
    assert pool.run(world, gathered_into, async_op) == [world] * world
