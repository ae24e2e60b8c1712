"""Codes and scales cut over real ranks: the parts of one rank's weight, bit for bit, and its layer.

192 inputs are three blocks of 64: torch.chunk's cut falls between them at three ranks, not at two
or four, and cut in whole blocks the last of four ranks has none.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.extras.quantization import dequantize, gptq, hessian, quantize_4bit, quantize_int8
from course_lib.extras.quantization.parallel import (
    ColumnParallelQuantized,
    RowParallelQuantized,
    quantize_int8_rows,
    spans_of_inputs,
)
from course_lib.extras.quantization.refusals import spans_of_blocks
from course_lib.extras.quantization.sizes import four_bit_bytes, int8_bytes
from course_lib.layout import cut, span
from course_lib.ledger import forms, ledger

WORLDS = (1, 3, 4)
FORMS = {
    "int8 a row": quantize_int8,
    "int8": lambda w: quantize_int8(w, 64),
    "nf4": quantize_4bit,
    "fp4": lambda w: quantize_4bit(w, "fp4", 16),
}


def made(*shape, seed, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def same(a, b):
    parts = ("codes", "scales") if hasattr(a, "codes") else ("packed", "scales")
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in parts)


def parts_of_rank(me):
    """Which ways of cutting are those of quantizing alone, on this rank."""
    n, found = me.world, {}
    weight = made(10, 192, seed=1)
    for name, quantize in FORMS.items():
        rows = slice(*span(10, n, me.rank))
        if rows.stop > rows.start:
            whole = quantize(weight).cut_outputs(rows.start, rows.stop)
            found[name, "outputs"] = same(whole, quantize(weight[rows]))
        blocks = slice(*spans_of_blocks(192, 64, n)[me.rank])
        if blocks.stop > blocks.start:
            whole = quantize(weight).cut_inputs(blocks.start, blocks.stop)
            found[name, "inputs"] = same(whole, quantize(weight[:, blocks]))
    if blocks.stop > blocks.start:
        whole = gptq(weight, hessian(weight)).cut_inputs(blocks.start, blocks.stop)
        alone = gptq(weight[:, blocks], hessian(weight[:, blocks]))
        found["gptq", "inputs"] = same(whole, alone)
    return found


@pytest.mark.parametrize("world", WORLDS)
def test_the_parts_of_a_quantized_weight_are_the_quantized_parts_between_borders(pool, world):
    for found in pool.run(world, parts_of_rank):
        rows_alone, gptq_alone = found.pop(("int8 a row", "inputs"), None), found.pop(
            ("gptq", "inputs"), None
        )  # fmt: skip
        assert all(found.values()), found
        assert rows_alone in (None, world == 1) and gptq_alone in (None, world == 1)


def rows_met(me, dtype):
    """int8 with one scale a row, of inputs cut as torch.chunk cuts: one max all-reduce."""
    weight = made(10, 7, seed=2, dtype=dtype)  # 7 over 4 ranks: 2, 2, 2, 1
    start, stop = span(7, me.world, me.rank)
    with ledger() as book:
        met = quantize_int8_rows(weight[:, start:stop], dist.group.WORLD)
    own = quantize_int8(weight).cut_inputs(start, stop)
    payload = 10 * dtype.itemsize
    assert same(met, own)
    assert book.bytes(column="must") == forms.all_reduce(me.world, payload)
    assert own.nbytes == int8_bytes(10, stop - start)
    few = quantize_int8_rows(weight[:, :2][:, slice(*span(2, me.world, me.rank))], dist.group.WORLD)
    assert same(few, quantize_int8(weight[:, :2]).cut_inputs(*span(2, me.world, me.rank)))
    return own.nbytes


@pytest.mark.parametrize(("world", "dtype"), [(4, torch.float64), (3, torch.float32)])
def test_a_scale_a_row_is_that_of_one_rank_after_a_max_over_the_ranks(pool, world, dtype):
    held = pool.run(world, rows_met, dtype)
    assert sum(held) == int8_bytes(10, 7) + (world - 1) * 4 * 10  # the scales are on every rank


def layers(me, name):
    """The two layers over the ranks against the dense ones, forward and back, bytes counted."""
    quantize = FORMS[name]
    up, down = quantize(made(192, 128, seed=3)), quantize(made(10, 192, seed=4))
    biases = made(192, seed=5), made(10, seed=6)
    x = made(2, 3, 128, seed=7).requires_grad_()
    dense = x.detach().clone().requires_grad_()
    linear = torch.nn.functional.linear
    hidden = torch.relu(linear(dense, dequantize(up, x.dtype), biases[0]))
    want = linear(hidden, dequantize(down, x.dtype), biases[1])
    want.square().sum().backward()
    rows = spans_of_inputs(down, me.world)
    first = ColumnParallelQuantized(up, dist.group.WORLD, biases[0], spans=rows)
    second = RowParallelQuantized(down, dist.group.WORLD, biases[1])
    with ledger() as book:
        y = second(torch.relu(first(x)))
        y.square().sum().backward()
    assert (y - want).abs().max() < 1e-10 * want.abs().max()
    assert (x.grad - dense.grad).abs().max() < 1e-10 * dense.grad.abs().max()
    both = sum(forms.all_reduce(me.world, z.nbytes) for z in (y, x))
    assert book.bytes(column="must") == both
    if me.world > 1:
        with pytest.raises(
            ValueError, match=f"rank {me.rank} has .*split the input at the same blocks"
        ):
            second(hidden)
    return rows[me.rank], first.weight.nbytes, second.weight.nbytes


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("world", [3, 4])
def test_two_quantized_layers_over_ranks_are_the_dense_ones(pool, world, name):
    for (start, stop), up, down in pool.run(world, layers, name):
        own = stop - start
        if name == "nf4":
            assert up == four_bit_bytes(own, 128) and down == four_bit_bytes(10, own)
        elif name == "int8 a row":
            assert up == int8_bytes(own, 128) and down == int8_bytes(10, own)


def test_whole_blocks_are_shared_out_as_a_dim_is():
    assert spans_of_blocks(192, 64, 2) == [(0, 128), (128, 192)]
    assert spans_of_blocks(192, 64, 4)[3] == (192, 192)
    for n in range(1, 6):
        sizes = [stop - start for start, stop in spans_of_blocks(640, 64, n)]
        assert sizes == [64 * count for count in cut(10, n)]


def test_columns_without_spans_are_cut_as_a_dim_is(pool):
    assert pool.run(3, plain_columns) == [(4, 64), (4, 64), (2, 64)]


def plain_columns(me):
    return ColumnParallelQuantized(
        quantize_4bit(made(10, 64, seed=8)), dist.group.WORLD
    ).weight.shape
