"""Each pair against what autograd would say of all ranks' work in one process.

Every rank makes every rank's input, so it can work out by itself what it should get, forward,
backward, and backward of the backward; and it asks the ledger what was sent for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from course_lib import ranks
from course_lib.ledger import ledger
from course_lib.tensor_parallel import conjugates as c
from tests.course_lib.tensor_parallel.parts import chunks, close, group_of, made, said

GROUPS = [(1, None), (2, None), (3, None), (4, (1, 2, 3))]
UNEVEN = [3, 1, 4, 2]


def cuts(n):
    """(dim, shape of the whole, sizes or None for torch.chunk's) with pieces uneven and empty."""
    uneven = UNEVEN[:n]
    return [
        (-1, (2, 3, sum(uneven)), uneven),
        (0, (sum(uneven[::-1]), 5), uneven[::-1]),
        (1, (2, sum(uneven) - uneven[0], 3), [0, *uneven[1:]]),
        (-1, (3, 7), None),
        (1, (2, 3 * n, 2), None),
    ]


class Pair(NamedTuple):
    """A pair on this rank, every rank's input, and what is right: functions of all ranks' inputs,
    and of all ranks' gradients of the result."""

    name: str
    call: Callable
    inputs: list[torch.Tensor]
    forward: Callable
    backward: Callable
    results: list[tuple[int, ...]]  # the shape of each rank's result
    one_input: bool = False  # the input is one and the same on all ranks
    one_result: bool = False  # and so is the result

    def owed(self, device):
        """A gradient of each rank's result; one and the same where the result is."""
        return [
            made((self.name, "owed", 0 if self.one_result else r), *shape, device=device)
            for r, shape in enumerate(self.results)
        ]


def pairs(group, device):
    n, me = group.size(), group.rank()

    def mine(xs):
        return xs[me]

    def total(xs):
        return sum(xs[1:], start=xs[0].clone())

    def all_ranks(label, shape, alike=False):
        return [made((label, 0 if alike else r), *shape, device=device) for r in range(n)]

    xs = all_ranks("f", (2, 5), alike=True)
    yield Pair("f", lambda x: c.copy(x, group), xs, mine, total, [(2, 5)] * n, one_input=True)
    xs = all_ranks("g", (3, 4))
    yield Pair("g", lambda x: c.reduce(x, group), xs, total, mine, [(3, 4)] * n, one_result=True)
    for dim, shape, sizes in cuts(n):
        yield from cutting_pairs(group, all_ranks, total, dim, shape, sizes)


def cutting_pairs(group, all_ranks, total, dim, shape, sizes):
    n, me = group.size(), group.rank()
    cut = sizes or chunks(shape[dim], n)
    joint = {"sizes": cut} if sizes or len(set(cut)) > 1 else {}
    where = f"dim {dim} of {shape} as {cut}"

    def own(xs):
        return xs[me].split(cut, dim)[me]

    def joined(xs):
        return torch.cat(xs, dim)

    def own_of_sum(xs):
        return total(xs).split(cut, dim)[me]

    wholes = [shape] * n
    pieces = [tuple(p.shape) for p in torch.empty(shape).split(cut, dim)]
    one = all_ranks("whole", shape, alike=True)
    in_pieces = [piece.contiguous() for piece in one[0].split(cut, dim)]
    yield Pair(
        *(f"split {where}", lambda x: c.split(x, group, dim, sizes), one, own, joined, pieces),
        one_input=True,
    )
    yield Pair(
        f"gather, then replicated, {where}",
        lambda x: c.gather(x, group, dim, **joint, after="replicated"),
        *(in_pieces, joined, own, wholes),
        one_result=True,
    )
    yield Pair(
        f"gather, then sharded, {where}",
        lambda x: c.gather(x, group, dim, **joint, after="sharded"),
        *(in_pieces, joined, own_of_sum, wholes),
    )
    yield Pair(
        f"reduce_scatter {where}",
        lambda x: c.reduce_scatter(x, group, dim, sizes),
        *(all_ranks("parts", shape), own_of_sum, joined, pieces),
    )


def against_one_process(me, members):
    group = group_of(me, members)
    if members is not None and me.rank not in members:
        return 0
    checked = 0
    for pair in pairs(group, me.device):
        x = pair.inputs[group.rank()].clone().requires_grad_()
        y = pair.call(x)
        close(pair.name, y, pair.forward(pair.inputs))
        owed = pair.owed(me.device)
        (got,) = torch.autograd.grad(y, x, owed[group.rank()])
        close(f"{pair.name}, backward", got, pair.backward(owed))
        checked += 1
    return checked


@pytest.mark.parametrize(("world", "members"), GROUPS)
def test_pairs_are_the_sum_over_all_ranks_forward_and_backward(pool, world, members):
    want = [22 if members is None or r in members else 0 for r in range(world)]
    assert pool.run(world, against_one_process, members) == want


def twice(me):
    """d/dy of ⟨backward(y), z⟩ is forward(z): the backward of the backward is the pair again."""
    for pair in pairs(dist.group.WORLD, me.device):
        x = pair.inputs[me.rank].clone().requires_grad_()
        y = pair.call(x)
        owed = torch.ones_like(y).requires_grad_()
        (got,) = torch.autograd.grad(y, x, owed, create_graph=True)
        z = pair.inputs[me.rank] + 1.0
        (again,) = torch.autograd.grad(got, owed, z)
        close(f"{pair.name}, twice", again, pair.call(z))


@pytest.mark.parametrize("world", [2, 3])
def test_the_backward_of_a_backward_is_the_pair_itself(pool, world):
    pool.run(world, twice)


def what_others_hold(me):
    """Traps: a sibling branch, a result that autograd saved, the caller's tensors."""
    group, n = dist.group.WORLD, me.world
    for pair in pairs(group, me.device):
        x = pair.inputs[me.rank].clone().requires_grad_()
        owed = pair.owed(me.device)[me.rank]
        before, kept = x.detach().clone(), owed.clone()
        y = pair.call(x)
        y.backward(owed)
        if pair.name != "f":  # whose result is its input
            kept_alive = y.untyped_storage().nbytes()
            assert kept_alive == y.numel() * y.element_size(), f"{pair.name} keeps more than itself"
        assert torch.equal(x, before), f"{pair.name} wrote into its input"
        assert torch.equal(owed, kept), f"{pair.name} wrote into the gradient that it was given"
    # A residual: the sum hands one gradient to both branches, and f sums it for one of them.
    v = made("v", 3, 4, device=me.device, grad=True)
    w = made("w", 3, 4, device=me.device, grad=True)
    owed = made(("owed", me.rank), 3, 4, device=me.device)
    (v + c.copy(w, group)).backward(owed)
    close("the sibling's gradient", v.grad, owed)
    close("f's", w.grad, sum(made(("owed", r), 3, 4, device=me.device) for r in range(n)))
    # exp keeps its result for the backward; a g in place would put the sum there.
    x = made(("x", me.rank), 5, device=me.device, grad=True)
    y = c.reduce(x.exp(), group)
    y.sum().backward()
    close("exp, then g", x.grad, x.detach().exp())
    close("exp, then g", y, sum(made(("x", r), 5, device=me.device).exp() for r in range(n)))


@pytest.mark.parametrize("world", [2, 3])
def test_nothing_that_anybody_else_holds_is_written_into(pool, world):
    pool.run(world, what_others_hold)


def booked(me):
    """(op, phase, payload) of all messages, for each pair; in float32, 4 bytes a number."""
    group, found = dist.group.WORLD, {}
    x = made("x", 6, 5, dtype=torch.float32, device=me.device, grad=True)
    cases = {
        "copy": lambda: c.copy(x, group),
        "reduce": lambda: c.reduce(x, group),
        "split": lambda: c.split(x, group, 0),
        "replicated": lambda: c.gather(x, group, 0, after="replicated"),
        "sharded": lambda: c.gather(x, group, 0, after="sharded"),
        "reduce_scatter": lambda: c.reduce_scatter(x, group, 0),
        "rows": lambda: c.copy_rows(x, 1, 3, group),
    }
    for name, case in cases.items():
        with ledger(axes={"tp": group}) as book:
            case().sum().backward()
        found[name] = [(r.op, r.phase, r.payload) for r in book.records]
    return found


def test_each_pair_sends_what_the_table_says(pool):
    whole, piece = 6 * 5 * 4, 2 * 5 * 4  # bytes of x, and of a third of it
    want = {
        "copy": [("all_reduce", "backward", whole)],
        "reduce": [("all_reduce", "forward", whole)],
        "split": [("all_gather", "backward", piece)],
        "replicated": [("all_gather", "forward", whole)],
        "sharded": [("all_gather", "forward", whole), ("reduce_scatter", "backward", 3 * whole)],
        "reduce_scatter": [("reduce_scatter", "forward", whole), ("all_gather", "backward", piece)],
        "rows": [("all_reduce", "backward", piece)],
    }
    assert pool.run(3, booked) == [want] * 3


def summed_wide(me, dtype, values):
    """Each rank brings one of `values`; their sum by g's forward and by f's backward."""
    group = dist.group.WORLD
    x = torch.tensor([values[me.rank]], dtype=dtype, device=me.device)
    leaf = torch.zeros(1, dtype=dtype, device=me.device, requires_grad=True)
    with ledger(axes={"tp": group}) as book:
        c.copy(leaf, group, sum_in=torch.float32).backward(x)
        y = c.reduce(x, group, sum_in=torch.float32)
    assert y.dtype == leaf.grad.dtype == dtype
    assert [r.dtype for r in book.records] == ["float32"] * 2
    return y.item(), leaf.grad.item()


def test_a_sum_in_float32_neither_overflows_nor_loses_the_small_ones(pool):
    # In float16, two of the first already make an infinity; a lucky order would not show it, so
    # the ledger is asked as well.
    values = [60000.0, 60000.0, -60000.0]
    assert pool.run(3, summed_wide, torch.float16, values) == [(60000.0, 60000.0)] * 3
    # 259 lies between two bfloat16 numbers, and the tie goes to 260; 256 + 1 would stay 256.
    values = [256.0, 1.0, 1.0, 1.0]
    assert pool.run(4, summed_wide, torch.bfloat16, values) == [(260.0, 260.0)] * 4


def refused(me):
    inside = ranks.new_group(me, [0])
    x = made("x", 4, 6, device=me.device, grad=True)
    calls = [
        lambda g: c.copy(x, g),
        lambda g: c.reduce(x, g),
        lambda g: c.split(x, g),
        lambda g: c.gather(x, g, after="replicated"),
        lambda g: c.reduce_scatter(x, g),
        lambda g: c.copy_rows(x, 0, 1, g),
    ]
    outside = [said(ValueError, call, inside) for call in calls] if me.rank else []
    outside += [said(ValueError, call, None) for call in calls]
    world = dist.group.WORLD
    return outside, [
        said(TypeError, c.gather, x, world),
        said(ValueError, c.gather, x, world, after="summed"),
        said(ValueError, c.split, x, world, -1, [6]),
        said(ValueError, c.split, x, world, -1, [3, 2]),
        said(ValueError, c.gather, x, world, -1, [6, 5 + me.rank, 1], after="sharded"),
        said(ValueError, c.reduce_scatter, x, world, 0, [3, 2]),
    ]


def test_calls_that_are_refused(pool):
    for outside, rest in pool.run(2, refused):
        assert len(outside) in (6, 12) and all("not in the group" in one for one in outside)
        assert "after" in rest[0]
        assert "after='summed'" in rest[1] and "'replicated' if all ranks do the same" in rest[1]
        assert "sizes=[6] do not split it over 2 ranks" in rest[2]
        assert "6 long" in rest[3] and "sizes=[3, 2]" in rest[3]
        assert "one length, 0 or more, for each of 2 ranks" in rest[4]
        assert "add up to 5" in rest[5]
