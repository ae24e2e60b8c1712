"""Stages composed with tensor parallelism on a (dp, tp) mesh, against the dense model.

Copies stay copies, shared key/value heads count once in the norm, and shards are of what tp left.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import ranks, zero
from course_lib.gpt import GPT, Config
from course_lib.tensor_parallel import check_replicas, parallelize
from course_lib.tensor_parallel.conjugates import gather
from tests.course_lib.tensor_parallel.parts import (
    chunks,
    close,
    held,
    made,
    randomized,
    same_parameters,
)

SIZES = {"vocabulary": 11, "length": 8, "layers": 2}
GPT2 = Config.gpt2(**SIZES, hidden=20, heads=5, inner=13)  # tied, with biases
LLAMA = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=2, inner=10)
SHARED = Config.llama(**SIZES, hidden=24, heads=4, kv_heads=1, inner=7)  # one kv head on two ranks
CLIP = 0.7  # below the first norms, so that a norm that is wrong changes the weights


def tokens(label, config):
    return (made(label, 2, 5) * 1000).long().abs() % config.vocabulary


def loss_of(model, config, label, group):
    ids, labels = tokens((label, "ids"), config), tokens((label, "labels"), config)
    logits = model(ids)
    if logits.shape[-1] != config.vocabulary:
        sizes = chunks(config.vocabulary, group.size())
        logits = gather(logits, group, -1, sizes, after="replicated")
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def on_the_mesh(me, config, stage, dp, sequence=False):
    """Three clipped AdamW steps of the cut model and of the dense one; the same all through."""
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    replica, group = mesh.get_local_rank("dp"), mesh.get_group("tp")
    dense = randomized(GPT(config), "mesh")

    def lay(model):
        return parallelize(model, mesh, sequence=sequence)

    where = held(dense, lay)
    cut = lay(copy.deepcopy(dense))
    theirs, mine = (
        torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1) for m in (dense, cut)
    )
    more = {"persist": 100} if stage == 3 else {"bucket_bytes": 3000}
    engine = zero.engine(cut, mine, stage=stage, mesh=mesh, clip=CLIP, **more)
    for step in range(3):
        theirs.zero_grad()
        losses = [loss_of(dense, config, (step, r), group) for r in range(dp)]
        sum(loss / dp for loss in losses).backward()
        norm = nn.utils.clip_grad_norm_(dense.parameters(), CLIP)
        assert norm > CLIP
        theirs.step()
        loss = loss_of(engine, config, (step, replica), group)
        close(f"step {step}: loss", loss, losses[replica])
        engine.backward(loss)
        engine.step()
        close(f"step {step}: norm", torch.tensor(engine.norm, dtype=torch.float64), norm, 1e-10)
    with engine.gathered(cut):
        # Adam divides by a gradient's size: where that is near nothing, rounding grows.
        same_parameters(f"stage {stage}", cut, dense, where, bound=1e-8)
        check_replicas(cut, group)
    whole = sum(p.numel() for p in dense.parameters())
    return whole, sum(part.numel() for _, part in engine.shards.parts())


@pytest.mark.parametrize(
    ("config", "world", "dp"),
    [
        (GPT2, 2, 2),
        (GPT2, 3, 3),
        pytest.param(LLAMA, 4, 4, marks=pytest.mark.slow),
        (GPT2, 4, 2),
        (SHARED, 4, 2),
    ],
    ids=["2x1", "3x1", "4x1", "2x2", "2x2-shared"],
)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_model_trains_on_the_mesh_as_the_dense_one(pool, config, world, dp, stage):
    found = pool.run(world, on_the_mesh, config, stage, dp, timeout=60)
    whole = found[0][0]
    held = [own for _, own in found]
    assert sum(held) >= whole
    if stage:  # each rank updates its share of what tp has left it, copies and padding included
        assert max(held) <= whole / world * (1 if dp == world else 1.6) + 20


@pytest.mark.parametrize(
    ("config", "stage", "sequence"),
    [(GPT2, 1, True), (GPT2, 3, True), (SHARED.changed(recompute=True), 3, False)],
    ids=["1-sequence", "3-sequence", "3-recompute"],
)
def test_sequence_parallelism_and_recomputation_too(pool, config, stage, sequence):
    pool.run(4, on_the_mesh, config, stage, 2, sequence, timeout=60)
