"""Copies that take over what was written to the model: what is compared, and the rank's waits."""

from __future__ import annotations

import warnings

import pytest
import torch

from course_lib.zero.offload.host import HostHome
from course_lib.zero.outside_changes import Untouched
from course_lib.zero.partition import partition
from tests.course_lib.zero.parts import Case, engine_of, loss_of, net, train


def test_a_shard_is_known_to_be_untouched_or_not():
    shards, untouched = [torch.arange(5.0), torch.arange(4.0).half(), torch.empty(0)], Untouched()
    assert untouched.changed(shards) == [True] * 3  # nothing is known yet
    untouched.note(shards)
    assert untouched.changed(shards) == [False] * 3
    shards[1][2] = 9
    assert untouched.changed(shards) == [False, True, False]
    untouched.note(shards)
    shards[0][[0, 1]] = shards[0][[1, 0]].clone()  # the same elements, in other places
    assert untouched.changed(shards) == [True, False, False]


def test_only_shards_that_were_written_to_are_compared():
    model = net().float()
    home, shards, own = HostHome(torch.device("cpu"), master=False), [], []
    parts = partition(model.named_parameters(), 1, most_bytes=300)
    for i, bucket in enumerate(parts.buckets):
        shards.append(bucket.shard(bucket.buffer(), 0).fill_(i))
        pieces = bucket.pieces(0)
        own.append(list(zip(pieces, home.keep(i, pieces, shards[-1]), strict=True)))
    assert len(shards) > 2
    home.follow(own, shards)
    home._untouched.note(shards)  # as after an update on a GPU
    for bucket in own:
        for _, part in bucket:
            part.data.fill_(7.0)  # a shard that is compared would be taken over
    shards[1].fill_(5.0)
    home.follow(own, shards)
    values = [{x for _, part in bucket for x in part.tolist()} for bucket in own]
    assert values[1] == {5.0} and all(x == {7.0} for x in [values[0], *values[2:]])


def waits_of_a_step(me, blocks, stage, options):
    """How often the host waits for the GPU in a step, as torch counts it."""
    case = Case(stage=stage, dtype=torch.float32, clip=1.0, optimizer="adamw-fused")
    case = case.but(bucket_bytes=1 << 20)
    engine = engine_of(me, case, net(blocks=blocks).float(), **options)
    train(me, case, engine, steps=[0, 1])
    case = case.but(dtype=engine.precision.dtype or case.dtype)
    loss, _ = loss_of(case, engine.module, 2, me.rank, me.world, 0)
    engine.backward(loss)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in noticed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    ("stage", "options"),
    [(0, {"precision": "bfloat16"}), (1, {"precision": "bfloat16"}), (2, {"offload": "cpu"})],
)
def test_the_waits_of_a_step_do_not_grow_with_the_model(pool, stage, options):
    few, many = (pool.run(1, waits_of_a_step, n, stage, options)[0] for n in (2, 8))
    assert 0 < few == many
