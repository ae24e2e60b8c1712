"""What a step reads and writes, to the byte: by the layer's own count, and by the kernel's.

Synced before a step counts as done; an overflow's step leaves every file as it was.
"""

from __future__ import annotations

import os

import pytest
import torch

from course_lib.zero import LossScale, Precision
from tests.course_lib.zero.offload.parts import (
    FLOAT,
    engine_of,
    files,
    made_for,
    offloaded,
    optimizer_of,
)
from tests.course_lib.zero.offload.parts import trained as run
from tests.course_lib.zero.offload.test_held import pages, real
from tests.course_lib.zero.parts import loss_of, train


def traffic(me, folder, way, half):
    width = 2 if half else 4
    case = FLOAT.but(stage=3, steps=3, accumulate=2, schedule=False, decay=False)
    case = case.but(stage3={"prefetch": 2, "persist": 0})
    options = {"precision": "bfloat16"} if half else {}
    engine, _, _ = run(me, case, offload=offloaded(way, folder), **options)
    io, partition = engine.home.io, engine.partition
    before = io.bytes_read, io.bytes_written, io.syncs
    gathers = dict.fromkeys(engine.shards.units, 0)
    together = engine.shards.together
    together.gather = _counted(together.gather, gathers)
    train(me, case, engine, steps=[3])
    own = {i: real(bucket, me.rank) for i, bucket in enumerate(partition.buckets)}
    own = {i: count for i, count in own.items() if count}
    stepped = [i for i in own if _used(partition.buckets[i])]
    kept = sum(pages(4 * own[i]) * 3 for i in stepped)  # values, two moments
    written, read = kept, kept
    if way == "3-nvme-nvme":
        written += sum(pages(2 * own[i]) for i in stepped) if half else 0
        last = len(engine.shards.units) - 1
        for unit, times in gathers.items():
            read += times * pages(width * own.get(last - engine.shards.units.index(unit), 0))
    assert sum(gathers.values()) > 0
    got = io.bytes_read - before[0], io.bytes_written - before[1], io.syncs - before[2]
    assert got == (read, written, len(stepped)), (got, read, written, len(stepped))
    engine.close()


def _used(bucket) -> bool:
    return any(not slot.name.startswith("never") for slot in bucket.slots)


def _counted(below, gathers):
    def gather(name):
        below(name)
        gathers[next(unit for unit in gathers if unit.name == name)] += 1

    return gather


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("way", ["3-nvme", "3-nvme-cpu", "3-nvme-nvme"])
def test_a_step_moves_what_the_formula_says(pool, way, half, tmp_path):
    pool.run(2, traffic, tmp_path, way, half, timeout=120)


def by_the_kernel(me, folder):
    """Blocks that the kernel fetched from and sent to a device, which no page cache has served."""
    case = FLOAT.but(stage=3, steps=2, accumulate=1, stage3={"persist": 0})
    engine, _, _ = run(me, case, offload=offloaded("3-nvme-nvme", folder))
    if not all(file.direct for file in engine.home.folder.files):
        return None
    io, before = engine.home.io, _kernel()
    counted = io.bytes_read, io.bytes_written
    train(me, case, engine, steps=[2, 3])
    after = _kernel()
    moved = io.bytes_read - counted[0], io.bytes_written - counted[1]
    engine.close()  # which reads the shards once more, for the host
    return (
        (after["read_bytes"] - before["read_bytes"], moved[0]),
        (after["write_bytes"] - before["write_bytes"], moved[1]),
    )


def _kernel() -> dict[str, int]:
    with open("/proc/self/io") as file:
        return {name: int(value) for name, value in (line.split(":") for line in file)}


@pytest.mark.skipif(not os.access("/proc/self/io", os.R_OK), reason="no /proc/self/io")
def test_the_kernel_counts_the_same_bytes(pool, tmp_path):
    [seen] = pool.run(1, by_the_kernel, tmp_path, timeout=120)
    if seen is None:
        pytest.skip(f"the file system of {tmp_path} has no O_DIRECT")
    for kernel, counted in seen:
        # Anything else that this process writes or reads meanwhile comes on top.
        assert counted <= kernel <= counted + (1 << 20), seen


def overflow(me, folder, way):
    case = FLOAT.but(stage=3, steps=2, accumulate=1, dtype=torch.float16)
    half = Precision(torch.float16, True, LossScale(value=16.0))
    engine, _, _ = run(me, case, offload=offloaded(way, folder), precision=half)
    before, skipped = files(folder), engine.skipped
    rates = [group["lr"] for group in engine.optimizer.param_groups]
    small = [[dict(one) for one in kept.small] for kept in engine.home.kept.values()]
    loss, _ = loss_of(case, engine, 2, me.rank, me.world, 0)
    engine.backward(loss * (torch.inf if me.rank == 1 else 1.0))
    written = engine.home.io.bytes_written
    assert engine.step() is False and engine.skipped == skipped + 1
    assert engine.home.io.bytes_written == written
    assert files(folder) == before, "an overflow has changed a file"
    assert [group["lr"] for group in engine.optimizer.param_groups] == rates
    for was, kept in zip(small, engine.home.kept.values(), strict=True):
        assert str(was) == str(kept.small)
    loss, _ = loss_of(case, engine, 3, me.rank, me.world, 0)
    engine.backward(loss)
    assert engine.step() is True
    assert files(folder) != before
    torch.distributed.barrier()
    engine.close()


@pytest.mark.parametrize("way", ["3-nvme", "3-nvme-nvme"])
def test_an_overflow_leaves_the_files_as_they_were(pool, way, tmp_path):
    pool.run(2, overflow, tmp_path, way, timeout=120)


def hooks(me, folder):
    """The user's hooks and schedule see one step, not one for each bucket."""
    case = FLOAT.but(stage=3, steps=0, accumulate=1, stage3={"persist": 0})
    model = made_for(case)
    optimizer, _ = optimizer_of(case, model)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    engine = engine_of(me, case, model, optimizer, offload=offloaded("3-nvme", folder))
    train(me, case, engine, steps=[0, 1])
    assert len(engine.home.kept) > 2
    assert seen == ["before", "after"] * 2, seen
    engine.close()


def test_hooks_of_a_step_run_once(pool, tmp_path):
    pool.run(2, hooks, tmp_path, timeout=120)
