"""A block in narrow numbers, cut and dense, held against the dense one in float64.

The bounds are said in roundings; TF32, on a GPU, has its own.
"""

from __future__ import annotations

import copy

import pytest
import torch

from course_lib import ranks
from course_lib.gpt import Block, Config
from course_lib.tensor_parallel import parallelize
from tests.course_lib.tensor_parallel.parts import close, held, made, part, randomized

CONFIG = Config.llama(hidden=24, heads=6, kv_heads=3, inner=10, bias=True)

# A rounding is at most half a unit in the last place: 2^-24 of a number in float32, 2^-11 in TF32
# (of a product's inputs), 2^-9 in bfloat16. Between a number and the loss lie four products, two
# norms and two residual sums, forward and backward again: some sixteen roundings of the largest
# numbers in a row, and the ranks' sums add log2(n) to four of them. All are held to 32.
ROUNDINGS = 32
DTYPES = {torch.float32: 2**-24, torch.bfloat16: 2**-9}


def in_dtype(me, dtype, unit):
    """How far the cut block, and the dense one, are from float64: y, dX and every gradient."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    exact = randomized(Block(CONFIG).to(me.device), "block").to(dtype).double()
    where = held(exact, lambda twin: parallelize(twin, mesh))
    dense = copy.deepcopy(exact).to(dtype)
    cut = parallelize(copy.deepcopy(dense), mesh)
    x = made("x", 2, 5, 24, device=me.device).to(dtype)
    owed = made("owed", 2, 5, 24, device=me.device).to(dtype)
    found = []
    for model in (exact, dense, cut):
        kind = torch.float64 if model is exact else dtype
        mine = x.to(kind, copy=True).requires_grad_()
        y = model(mine)
        assert y.dtype == kind
        y.backward(owed.to(kind))
        found.append({"y": y, "dX": mine.grad, **{n: p.grad for n, p in model.named_parameters()}})
    for name, want in found[0].items():
        got = found[2][name]
        close(f"the dense {name}", found[1][name].double(), want, ROUNDINGS * unit)
        want = want if name in ("y", "dX") else part(want, where[name])
        close(name, got.double(), want, ROUNDINGS * unit)
        assert not torch.equal(got.double(), want)  # it was narrow


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_narrow_numbers_stay_within_their_roundings(pool, dtype):
    pool.run(3, in_dtype, dtype, DTYPES[dtype])


def in_tf32(me):
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        in_dtype(me, torch.float32, 2**-11)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_so_do_those_of_tf32(pool):
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no TF32")
    pool.run(2, in_tf32, timeout=120)
