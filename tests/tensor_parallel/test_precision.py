"""A block in narrow numbers, cut and dense, held against the dense one in float64.

The bounds are said in roundings. On GPUs: NCCL where there is one for each rank, gloo where ranks
share one, float64 as tight as on a CPU, bfloat16 and TF32 by their own bounds.
"""

from __future__ import annotations

import copy

import pytest
import torch

from course_lib import ranks
from course_lib.gpt import Block, Config
from course_lib.tensor_parallel import parallelize
from tests.tensor_parallel.parts import close, held, made, part, randomized
from tests.tensor_parallel.test_attention import KINDS
from tests.tensor_parallel.test_attention import against_dense as attention_against_dense
from tests.tensor_parallel.test_linear import CASES
from tests.tensor_parallel.test_linear import against_dense as linear_against_dense
from tests.tensor_parallel.test_mlp import against_dense as mlp_against_dense

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


def everything(me, backend):
    """All layers in float64 to 1e-10, then the narrow kinds, on this rank's GPU."""
    assert (me.backend, me.device.type) == (backend, "cuda")
    linear_against_dense(me, None, CASES)
    mlp_against_dense(me, None)
    attention_against_dense(me, KINDS[me.world], None)
    for dtype, unit in DTYPES.items():
        in_dtype(me, dtype, unit)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        if torch.cuda.get_device_capability(me.device) >= (8, 0):
            in_dtype(me, torch.float32, 2**-11)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_layer_with_a_gpu_for_each_rank(pool, world):
    if torch.cuda.device_count() < world:
        pytest.skip(f"needs {world} GPUs")
    pool.run(world, everything, "nccl", timeout=120)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_layer_where_ranks_share_a_gpu(pool):
    world = torch.cuda.device_count() + 1
    if world > 4:
        pytest.skip(f"{world - 1} GPUs: there each rank of four has its own")
    pool.run(world, everything, "gloo", timeout=120)
