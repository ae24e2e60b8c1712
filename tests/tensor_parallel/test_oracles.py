"""The cut layers against DTensor's styles, which cut by torch.chunk and have their own messages."""

from __future__ import annotations

import copy

import torch.distributed as dist
from torch import nn

from course_lib import ranks
from course_lib.gpt import MLP, Config
from course_lib.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    shard_mlp,
)
from tests.tensor_parallel.parts import close, made, randomized

# Their imports take seconds on every rank, so all of this runs on three ranks alone.
WORLD = 3
WIDTHS = [7, 9, 4]  # cut into 3, 3, 1; into 3, 3, 3; into 2, 2 and nothing


def against_dtensor(me):
    """Weights, y and gradients of an MLP that parallelize_module has cut, and of ours."""
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh, group = ranks.mesh(me, dp=1, tp=me.world), dist.group.WORLD
    for width in WIDTHS:
        config = Config(hidden=6, heads=2, inner=width, activation="gelu")
        dense = randomized(MLP(config).to(me.device), width)
        plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
        theirs = parallelize_module(copy.deepcopy(dense), mesh["tp"], plan)
        ours = shard_mlp(copy.deepcopy(dense), group)
        x = made("x", 4, 6, device=me.device, grad=True)
        mine = x.detach().clone().requires_grad_()
        owed = made("owed", 4, 6, device=me.device)
        want, got = theirs(x), ours(mine)
        close("y", got, want)
        want.backward(owed)
        got.backward(owed)
        close("dX", mine.grad, x.grad)
        placed = dict(theirs.named_parameters())
        for name, p in ours.named_parameters():
            close(name, p, placed[name].to_local())
            grad = placed[name].grad
            close(f"grad of {name}", p.grad, grad.to_local())
        for dim, kind in ((0, ColumnParallelLinear), (1, RowParallelLinear)):
            linear = randomized(nn.Linear(width, width + 3, device=me.device), "one")
            piece = distribute_tensor(linear.weight.detach(), mesh["tp"], [Shard(dim)]).to_local()
            close("a shard", kind.from_dense(linear, group).weight, piece, bound=0.0)


def test_an_mlp_is_cut_as_dtensor_cuts_it(pool):
    pool.run(WORLD, against_dtensor, timeout=90)
