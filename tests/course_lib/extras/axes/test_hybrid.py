"""ZeRO inside, copies across, against one process: weights, bytes of each axis, what is held."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import ranks, zero
from course_lib.estimate.traffic import must_bytes
from course_lib.extras.axes.hybrid import Hybrid
from course_lib.ledger import ledger
from tests.course_lib.tensor_parallel.parts import close, made, randomized, said

ROWS = 12


def net(device):
    layers = [nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)]
    return randomized(nn.Sequential(*layers).to(device), "hybrid")


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05, foreach=False)


def groups_of(me, nodes):
    """Neighbours in rank share a node; across are those with the same place on each."""
    mesh = ranks.mesh(me, dp=nodes, tp=me.world // nodes)
    return {"inside": mesh.get_group("tp"), "across": mesh.get_group("dp")}


def share(rank, world, uneven):
    """The rows that a rank sees: equally many, or few and many."""
    sizes = [ROWS // world] * world
    if uneven:
        sizes = [r + 1 for r in range(world)]
        sizes[-1] += ROWS - sum(sizes)
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def against_one(me, nodes, stage, accumulate, clip, uneven):
    groups, whole, model = groups_of(me, nodes), net(me.device), net(me.device)
    if dist.get_rank(groups["across"]):
        nn.init.zeros_(model[0].weight)  # the first node's weights count
    options = {"persist": 0} if stage == 3 else {}
    alone = adamw(whole)
    engine = Hybrid(
        model, adamw(model), **groups, stage=stage, accumulate=accumulate, clip=clip, **options
    )
    n = groups["inside"].size()
    for step in range(3):
        alone.zero_grad()
        with ledger(axes=groups) as book:
            for micro in range(accumulate):
                x = made(("x", step, micro), ROWS, 5, device=me.device)
                want = whole(x).square().sum(1)
                (want.mean() / accumulate).backward()
                own = engine(x[share(me.rank, me.world, uneven)]).square().sum(1)
                if uneven:
                    engine.backward(own.sum(), tokens=len(own))
                else:
                    engine.backward(own.mean())
                engine.step()
        norm = nn.utils.clip_grad_norm_(whole.parameters(), clip or 1e9)
        assert abs(engine.norm - norm.item()) < 1e-10 * max(1.0, norm.item())
        alone.step()
    for name, weight in engine.state_dict().items():
        close(name, weight, whole.state_dict()[name].cpu())
    inside = must_bytes(net("cpu"), stage=stage, n=n, accumulate=accumulate, **options)
    assert book.bytes(axis="inside", label="") == sum(inside.values())
    shard = sum(b.padded * 8 // (n if stage else 1) for b in engine.partition.buckets)
    times = accumulate if stage >= 2 else 1
    assert book.bytes(axis="across", label="") == times * 2 * (nodes - 1) * shard / nodes
    assert book.count("all_reduce", "across", label="") > 0
    return book.bytes(axis="across", label=""), zero.holdings(engine)["device"]


CASES = [
    (1, 1, 2, 1, None, False),
    (2, 1, 3, 1, 0.5, False),
    (2, 2, 0, 1, None, True),
    (3, 3, 1, 1, 0.5, True),
    (4, 2, 2, 2, 0.5, False),
    (4, 2, 3, 1, 0.5, True),
]


@pytest.mark.parametrize(("world", "nodes", "stage", "accumulate", "clip", "uneven"), CASES)
def test_hybrid_sharding_is_one_process(pool, world, nodes, stage, accumulate, clip, uneven):
    pool.run(world, against_one, nodes, stage, accumulate, clip, uneven)


def refused(me):
    groups, model = groups_of(me, 2), net(me.device)
    inside, world = groups["inside"], dist.group.WORLD
    found = [
        said(ValueError, Hybrid, model, adamw(model), inside=inside, across=other, stage=2)
        for other in (inside, world)
    ]
    return [*found, said(ValueError, Hybrid, model, adamw(model), **groups, stage=4)]


def test_groups_that_do_not_cross_are_refused(pool):
    same, whole, stage = pool.run(4, refused)[2]
    assert same.startswith("rank 2: inside=[2, 3] and across=[2, 3] share ranks [2, 3]")
    assert whole.startswith("rank 2: inside=[2, 3] and across=[0, 1, 2, 3] share ranks [2, 3]")
    assert "the ranks with the same position on each node in across" in whole
    assert stage.startswith("stage=4: 0 shards nothing")
