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
from tests.tensor_parallel.parts import (
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
        (LLAMA, 4, 4),
        (GPT2, 4, 2),
        (SHARED, 4, 2),
        pytest.param(LLAMA, 4, 2, marks=pytest.mark.slow),
        pytest.param(GPT2, 4, 1, marks=pytest.mark.slow),
    ],
    ids=["2x1", "3x1", "4x1", "2x2", "2x2-shared", "2x2-llama", "1x4"],
)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_model_trains_on_the_mesh_as_the_dense_one(pool, config, world, dp, stage):
    found = pool.run(world, on_the_mesh, config, stage, dp, timeout=60)
    whole = found[0][0]
    held = [own for _, own in found]
    assert sum(held) >= whole
    if stage:  # each rank updates its share of what tp has left it, copies and padding included
        assert max(held) <= whole / world * (1 if dp == world else 1.6) + 20


@pytest.mark.parametrize("stage", [1, 3])
def test_sequence_parallelism_too(pool, stage):
    pool.run(4, on_the_mesh, GPT2, stage, 2, True, timeout=60)


def recomputed(me, stage):
    on_the_mesh(me, SHARED.changed(recompute=True), stage, 2)


@pytest.mark.parametrize("stage", [2, 3])
def test_with_recomputation(pool, stage):
    pool.run(4, recomputed, stage, timeout=60)


def from_the_meta_device(me):
    """A model cut over tp before it has numbers, filled shard by shard with the dense one's."""
    mesh = ranks.mesh(me, dp=2, tp=2)
    dense = randomized(GPT(SHARED), "mesh").float()
    with torch.device("meta"):
        cut = parallelize(GPT(SHARED), mesh)
    where = held(dense, lambda model: parallelize(model, mesh))
    whole = dict(dense.named_parameters())

    def fill(name, x):
        x.copy_(whole[name].detach().reshape(-1)[where[name]])

    optimizer = torch.optim.SGD(cut.parameters(), lr=0.1)
    engine = zero.engine(cut, optimizer, stage=3, mesh=mesh, fill=fill, persist=0)
    with engine.gathered(cut):
        same_parameters("filled", cut, dense, where, bound=0.0)


def test_a_cut_model_is_filled_shard_by_shard(pool):
    pool.run(4, from_the_meta_device)


def boxes(me):
    """What the partition says of logical pieces, on this rank: numbers of the dense tensor."""
    mesh = ranks.mesh(me, dp=2, tp=2)
    dense = randomized(GPT(GPT2.changed(tied=False)), "mesh")
    cut = parallelize(copy.deepcopy(dense), mesh)
    where = held(dense, lambda model: parallelize(model, mesh))
    optimizer = torch.optim.SGD(cut.parameters(), lr=0.1)
    engine = zero.engine(cut, optimizer, stage=1, mesh=mesh, bucket_bytes=3000)
    rank, found = mesh.get_local_rank("dp"), {}
    for name, p in cut.named_parameters():
        rows = 13  # of mlp.up: cut like torch.chunk, 7 and 6
        if name.endswith("mlp.up.weight"):
            start = (0, 7)[mesh.get_local_rank("tp")]
            own = []
            for box in engine.partition.boxes(
                p, rank, dim=0, spans=[(start, min(rows, start + 7))]
            ):
                cut_out = tuple(slice(o, o + s) for o, s in zip(box.offset, box.size, strict=True))
                own += torch.arange(rows * 20).view(rows, 20)[cut_out].reshape(-1).tolist()
            bucket, slot = engine.partition.where[p]
            want = [
                where[name].reshape(-1)[i].item()
                for piece in bucket.pieces(rank)
                if piece.slot is slot
                for i in range(piece.start, piece.stop)
            ]
            assert own == want, name
            found[name] = own
    return found


def test_boxes_lead_through_both_cuts(pool):
    every = pool.run(4, boxes)
    for name in every[0]:
        assert sorted(i for found in every for i in found[name]) == list(range(13 * 20))
