"""Every stage against one process that sees all ranks' data: losses, norms and weights.

Different data on every rank, accumulation, unequal tokens, clipping, groups, schedules, optimizers.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from tests.course_lib.zero.parts import (
    Case,
    close,
    engine_of,
    made,
    match,
    over_dp,
    same_as_one_process,
    train,
    zeros,
)

CASES = {
    "plain": Case(steps=20),
    "clipped": Case(clip=0.3),
    "accumulated": Case(accumulate=2, clip=0.3),
    "four": Case(accumulate=4, steps=2),
    "tokens": Case(tokens=True),
    "tokens accumulated": Case(tokens=True, accumulate=2, clip=0.3),
    "decay": Case(decay=True, clip=0.3),
    "tied": Case(tied=True, clip=0.3, accumulate=2),
    "frozen": Case(frozen=("first", "blocks.1.norm.weight", "last.bias"), clip=0.3),
    "a frozen unit": Case(frozen=("blocks.1", "back"), clip=0.3, accumulate=2),
    "unused on one rank": Case(skips="one rank", clip=0.3, accumulate=2),
    "unused on all": Case(skips="all ranks", clip=0.3),
    "unused in a micro-batch": Case(skips="one micro-batch", accumulate=2),
    "unused now and then": Case(skips="now and then", clip=0.3),
    "schedule": Case(schedule=True, steps=6),
    "sgd": Case(optimizer="sgd"),
    "momentum": Case(optimizer="momentum", skips="now and then"),
    "adamw-foreach": Case(optimizer="adamw-foreach", decay=True),
    "adamw-fused": Case(optimizer="adamw-fused", decay=True),
    "adam": Case(optimizer="adam"),
    "rmsprop": Case(optimizer="rmsprop"),
    "adagrad": Case(optimizer="adagrad"),
    "one bucket": Case(bucket_bytes=1 << 20, clip=0.3),
    "a bucket each": Case(bucket_bytes=1, clip=0.3),
}


# An optimizer's arithmetic does not see the stage: one stage each.
AT_ONE_STAGE = {
    "sgd": 0, "momentum": 1, "adamw-foreach": 2, "adamw-fused": 3, "adam": 1, "rmsprop": 2,
    "adagrad": 3, "schedule": 2, "one bucket": 2, "a bucket each": 1, "decay": 3,
}  # fmt: skip
# At stage 3 a rank that leaves out a unit takes another branch: see test_stage3.py.
PAIRS = [
    (stage, name)
    for stage in (0, 1, 2, 3)
    for name in CASES
    if AT_ONE_STAGE.get(name, stage) == stage and (stage < 3 or name != "unused on one rank")
]


def trained(me, case):
    same_as_one_process(me, case)


@pytest.mark.parametrize(("stage", "name"), PAIRS)
def test_a_stage_is_one_process(pool, stage, name):
    pool.run(3, trained, CASES[name].but(stage=stage), timeout=60)


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_at_every_world(pool, stage, world):
    pool.run(world, trained, Case(stage=stage, accumulate=2, clip=0.3, decay=True), timeout=60)


class Ragged(nn.Module):
    """P numbers, in as many parameters as `shapes` says."""

    def __init__(self, shapes):
        super().__init__()
        self.ps = nn.ParameterList(nn.Parameter(made((i, "p"), *s)) for i, s in enumerate(shapes))

    def forward(self, x):
        return sum((p * x).square().sum() + p.sum() for p in self.ps)


SHAPES = [[()], [(1,)], [(2,)], [(7,)], [(1, 2), (3,), (), (1,)], [(0,), (2, 1)]]


def ragged(me, stage):
    """Parameters fewer than ranks: some shards hold padding alone, and no number of it moves."""
    held = []
    for shapes in SHAPES:
        for decay in (0.0, 0.5):
            model, plain = Ragged(shapes), Ragged(shapes)
            mine, theirs = (
                torch.optim.AdamW(m.parameters(), lr=0.1, weight_decay=decay)
                for m in (model, plain)
            )
            more = {} if stage == 3 else {"bucket_bytes": 30}
            engine = over_dp(me, model, mine, stage, clip=0.5, **more)
            for step in range(4):
                xs = [made((step, rank, "x"), 1).item() for rank in range(me.world)]
                theirs.zero_grad()
                (sum(plain(x) for x in xs) / me.world).backward()
                want = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
                theirs.step()
                engine.backward(engine(xs[me.rank]))
                engine.step()
                close(
                    f"{shapes}: norm", torch.tensor(engine.norm, dtype=torch.float64), want, 1e-10
                )
            match(f"{shapes}", engine, plain)
            for bucket, own in zip(engine.partition.buckets, engine.shards.own, strict=True):
                assert sum(part.numel() for _, part in own) == (
                    bucket.cut.pieces[me.rank] if stage else bucket.cut.total
                )
            if stage in (1, 2):
                for bucket, buffer in zip(
                    engine.partition.buckets, engine.shards.buffers, strict=True
                ):
                    assert zeros(buffer[bucket.cut.total :]), "padding was trained"
            held.append(sum(part.numel() for _, part in engine.shards.parts()))
    return held


@pytest.mark.parametrize(("stage", "world"), [(0, 3), (1, 3), (2, 4), (3, 3)])
def test_ragged_and_empty_shards(pool, stage, world):
    each = pool.run(world, ragged, stage)
    totals = [sum(torch.Size(s).numel() for s in shapes) for shapes in SHAPES for _ in range(2)]
    if stage:
        assert [sum(column) for column in zip(*each, strict=True)] == totals
        assert 0 in each[-1]
    else:
        assert each == [totals] * world


def dropped(me, stage):
    """Which parts of an engine live on when nobody has it any more."""
    case = Case(stage=stage, steps=1)
    engine = engine_of(me, case)
    train(me, case, engine)
    parts = {"engine": engine, "model": engine.model, "gradients": engine.gradients}
    parts |= {"shards": engine.shards, "partition": engine.partition}
    parts = {name: weakref.ref(one) for name, one in parts.items()}
    del engine
    gc.collect()
    return [name for name, one in parts.items() if one() is not None]


@pytest.mark.parametrize("stage", [0, 3])
def test_an_engine_that_nobody_needs_is_gone(pool, stage):
    assert pool.run(2, dropped, stage) == [[], []]
