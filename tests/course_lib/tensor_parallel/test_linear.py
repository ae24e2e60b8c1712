"""A layer cut by columns, by rows, and one after the other, against the same layer in one process.

Shapes are not square, uneven, some with nothing for the last rank, biases not zero. Every rank
computes the dense layer too; what it holds of it is read off marked weights.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.ledger import ledger
from course_lib.tensor_parallel import ColumnParallelLinear, RowParallelLinear, column_products
from course_lib.tensor_parallel.products import row_product
from tests.course_lib.tensor_parallel.parts import (
    WORLDS,
    close,
    fewer,
    group_of,
    held,
    made,
    own,
    randomized,
    said,
    same_gradients,
    same_parameters,
)


def linear(label, inputs, outputs, bias, device):
    return randomized(nn.Linear(inputs, outputs, bias, device=device), label)


def against_dense(me, members, cases):
    """For each (inputs, outputs, leading shape, bias): by columns and by rows, joined and not."""
    group = group_of(me, members)
    if members is not None and me.rank not in members:
        return None
    missing = 0
    for case in cases:
        inputs, outputs, lead, bias = case
        x = made(("x", case), *lead, inputs, device=me.device, grad=True)
        dense = linear(case, inputs, outputs, bias, me.device)
        want = dense(x)
        owed = made(("owed", case), *want.shape, device=me.device)
        (want_dx,) = torch.autograd.grad(want, x, owed, retain_graph=True)
        want.backward(owed, inputs=list(dense.parameters()))
        kept = x.detach().clone(), [p.detach().clone() for p in dense.parameters()]
        for joined in (False, True):
            by_columns = ColumnParallelLinear(dense, group, gather_output=joined)
            by_rows = RowParallelLinear(dense, group, split_input=joined)
            for layer in (by_columns, by_rows):
                label = f"{case} by {'columns' if layer is by_columns else 'rows'}, {joined}"
                kind = type(layer)
                where = held(dense, lambda twin, kind=kind: kind(twin, group))
                missing += fewer(where, dense)
                mine = x.detach().clone().requires_grad_()
                cut_x = mine if layer is by_columns or joined else own(mine, group)
                y = layer(cut_x)
                whole = layer is by_rows or joined
                close(label, y, want if whole else own(want, group))
                y.backward(owed if whole else own(owed, group))
                want_mine = want_dx
                if layer is by_rows and not joined:  # this rank's columns of X alone
                    mask = torch.zeros_like(want_dx)
                    own(mask, group).fill_(1.0)
                    want_mine = want_dx * mask
                close(f"{label}: dX", mine.grad, want_mine)
                same_parameters(label, layer, dense, where)
                same_gradients(label, layer, dense, where)
        assert torch.equal(x, kept[0]) and all(map(torch.equal, dense.parameters(), kept[1]))
    return missing


CASES = [
    (7, 5, (2, 3), True),
    (5, 9, (4,), True),  # on four ranks 9 is cut into 3, 3, 3 and nothing
    (3, 2, (2, 1, 2), False),
    (6, 8, (), True),  # a single vector
    (4, 6, (0, 3), True),  # an empty batch
    (1, 1, (3,), True),
]


@pytest.mark.parametrize(("world", "members"), [*((w, None) for w in WORLDS), (3, (0, 2))])
def test_cut_layers_are_the_dense_one(pool, world, members):
    found = pool.run(world, against_dense, members, CASES)
    inside = [one for one in found if one is not None]
    assert len(inside) == len(members or range(world))
    assert all(missing > 0 for missing in inside) or world == 1  # something was cut


def several(me):
    """Three products of one X: values, gradients, one message; then with parts of it frozen."""
    group, widths, messages = dist.group.WORLD, [4, 7, 3], []
    x = made("x", 2, 3, 5, device=me.device, grad=True)
    dense = [linear(("w", k), 5, k, k != 7, me.device) for k in widths]
    for frozen in ("nothing", "x", "weights", "biases"):
        x.requires_grad_(frozen != "x")
        x.grad = None
        for d in dense:
            d.zero_grad()
            d.weight.requires_grad_(frozen != "weights")
            if d.bias is not None:
                d.bias.requires_grad_(frozen not in ("biases", "weights"))
        mine = x.detach().clone().requires_grad_(x.requires_grad)
        cut = [ColumnParallelLinear(d, group) for d in dense]
        with ledger(axes={"tp": group}) as book:
            ys = column_products(mine, [c.weight for c in cut], [c.bias for c in cut], group)
            used = [(y, own(d(x), group)) for y, d in zip(ys, dense, strict=True)]
            # The last is not used: its gradient never comes.
            sum((y.sin() * (k + 1)).sum() for k, (y, _) in enumerate(used[:2])).backward()
        messages.append([(r.op, r.phase, r.payload) for r in book.records])
        sum((d(x).sin() * (k + 1)).sum() for k, d in enumerate(dense[:2])).backward()
        for (y, want), label in zip(used, widths, strict=True):
            close(f"{label}, {frozen} frozen", y, want)
        assert (mine.grad is None) == (frozen == "x")
        if frozen != "x":
            close(f"dX, {frozen} frozen", mine.grad, x.grad)
        for c, d in zip(cut[:2], dense[:2], strict=True):
            for got, want in ((c.weight, d.weight), (c.bias, d.bias)):
                assert got is None or (got.grad is None) == (want.grad is None), frozen
                if got is not None and got.grad is not None:
                    close(f"a gradient, {frozen} frozen", got.grad, own(want.grad, group, 0))
    return messages


@pytest.mark.parametrize("world", [1, 3])
def test_products_that_share_an_input_share_one_message(pool, world):
    one = [("all_reduce", "backward", 2 * 3 * 5 * 8)]
    assert pool.run(world, several) == [[one, [], one, one]] * world


def summed_wide(me):
    """dX of a layer by columns and Y of one by rows, in bfloat16: 256, and a 1 from each other."""
    group = dist.group.WORLD
    value = 256.0 if me.rank == 0 else 1.0
    weight = torch.full((1, 1), value, dtype=torch.bfloat16, device=me.device)
    x = torch.ones(1, 1, dtype=torch.bfloat16, device=me.device, requires_grad=True)
    with ledger(axes={"tp": group}) as book:
        (y,) = column_products(x, [weight], [None], group, sum_in=torch.float32)
        y.backward(torch.ones_like(y))
        z = row_product(x.detach(), weight, None, group, sum_in=torch.float32)
    assert [r.dtype for r in book.records] == ["float32"] * 2
    assert x.grad.dtype == z.dtype == torch.bfloat16
    return x.grad.item(), z.item()


def test_sums_of_narrow_numbers_may_be_taken_in_wide_ones(pool):
    # 259 lies between two bfloat16 numbers, and the tie goes to 260; 256 + 1 would stay 256.
    assert pool.run(4, summed_wide) == [(260.0, 260.0)] * 4


def refused(me):
    group, x = dist.group.WORLD, made("x", 2, 6, device=me.device)
    half = x[:, :3]
    dense = linear("w", 6, 4, True, me.device)
    columns = ColumnParallelLinear(dense, group)
    rows = RowParallelLinear(dense, group)
    whole = RowParallelLinear(dense, group, split_input=True)
    return [
        said(ValueError, columns, half),
        said(ValueError, columns, x[:, :5]),
        said(ValueError, rows, x),
        said(ValueError, rows, x[:, :2]),
        said(ValueError, whole, half),
        said(ValueError, ColumnParallelLinear, columns, group),
        said(ValueError, RowParallelLinear, columns, group),
        said(TypeError, ColumnParallelLinear, nn.Bilinear(2, 2, 2), group),
        said(ValueError, ColumnParallelLinear, dense, group, rows=[(0, 2)],
             gather_output=True),
        said(ValueError, RowParallelLinear, dense, group, columns=[(0, 3)],
             split_input=True),
    ]  # fmt: skip


def test_wrong_inputs_are_named(pool):
    for rank, found in enumerate(pool.run(2, refused)):
        assert f"rank {rank}: a column-parallel layer takes the full input, 6 wide" in found[0]
        assert "got 3" in found[0] and "gather_output=True" in found[0] and "got 5" in found[1]
        assert "3 wide, but got 6" in found[2] and "split_input=True" in found[2]
        assert "got 2" in found[3] and "same rule as this layer's weight" in found[3]
        assert "6 wide, but got 3" in found[4] and "leave split_input out" in found[4]
        assert all("sharded already" in one for one in found[5:7]) and "a Bilinear" in found[7]
        assert "rank order" in found[8] and "torch.chunk" in found[9]
