"""Against others' code on the same seed: DeepSpeed's stages and FSDP2.

All in float32 on each rank's own data. The sums are taken in other orders, and Adam divides by
gradients that may be small: over a few steps losses agree to a millionth part or so.
"""

from __future__ import annotations

import importlib.util
import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib import ranks, zero
from course_lib.gpt import MLP, Config
from tests.tensor_parallel.parts import made, randomized

BOUND = 2e-5  # of losses around 1, after STEPS steps of 0.02
STEPS, BATCH = 8, 6
CONFIG = Config(hidden=12, heads=2, inner=16, activation="gelu")


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(MLP(CONFIG) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def model_of(label="peers"):
    return randomized(Layers(), label).float()


def data(step, rank, micro=0):
    return (made((step, rank, micro, k), BATCH, 12, dtype=torch.float32) for k in "xy")


def adamw(parameters, **options):
    return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1, foreach=False, **options)


def ours(me, stage, clip, mesh=None, model=None, accumulate=1):
    mesh = mesh or ranks.mesh(me, dp=me.world, tp=1)
    model = model_of() if model is None else model
    options = {"persist": 0} if stage == 3 else {"bucket_bytes": 1000}
    engine = zero.engine(
        model,
        adamw(model.parameters()),
        stage=stage,
        mesh=mesh,
        clip=clip,
        accumulate=accumulate,
        **options,
    )
    losses = []
    for step in range(STEPS):
        for micro in range(accumulate):
            x, y = data(step, mesh.get_local_rank("dp"), micro)
            loss = F.mse_loss(engine(x), y)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


def agree(label, ours, theirs):
    got, want = torch.tensor(ours), torch.tensor(theirs)
    off = (got - want).abs().max().item()
    assert off <= BOUND * max(1.0, want.abs().max().item()), f"{label}: off by {off:.3g}"
    assert want.std() > 10 * BOUND, "nothing was trained"


def fsdp2(me, reshard):
    from torch.distributed.fsdp import fully_shard

    mesh = ranks.mesh(me, dp=me.world, tp=1)
    model = model_of()
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"], reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh["dp"], reshard_after_forward=reshard)
    optimizer = adamw(model.parameters())
    losses = []
    for step in range(STEPS):
        x, y = data(step, me.rank)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    for stage in (0, 1, 2, 3):
        agree(f"stage {stage}", ours(me, stage, 0.5), losses)


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_stage_loses_as_fsdp2(pool, world):
    pool.run(world, fsdp2, True, timeout=90)


def deepspeed(me, stage, clip, accumulate):
    warnings.filterwarnings("ignore")
    os.environ.update(
        RANK=str(me.rank),
        LOCAL_RANK=str(me.rank),
        WORLD_SIZE=str(me.world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",  # read by DeepSpeed, used by nobody: the group is there already
    )
    import deepspeed

    # An extension for single-host inference that it would compile now and not use here.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    model = model_of()
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": accumulate,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 0.02, "weight_decay": 0.1, "torch_adam": True},
        },
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 1000},
        "gradient_clipping": clip,
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    losses = []
    for step in range(STEPS):
        for micro in range(accumulate):
            x, y = data(step, me.rank, micro)
            loss = F.mse_loss(engine(x), y)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    engine.destroy()
    agree(f"stage {stage}", ours(me, stage, clip or None, accumulate=accumulate), losses)
    return dist.is_initialized()


@pytest.mark.cpu("DeepSpeed's own engine is held against there")
@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed (pip install 'course_lib[deepspeed]')",
)
@pytest.mark.parametrize(
    ("stage", "clip", "accumulate", "world"),
    [
        (2, 1.0, 2, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (1, 0.0, 1, 2),
                (1, 1.0, 2, 2),
                (2, 0.0, 1, 3),
                (3, 0.0, 1, 2),
                (3, 1.0, 2, 2),
            ]
        ),
    ],
)
def test_a_stage_loses_as_deepspeeds(pool, stage, clip, accumulate, world):
    env = {"DS_ACCELERATOR": "cpu"}
    pool.run(world, deepspeed, stage, clip, accumulate, timeout=150, env=env, alone=True)
