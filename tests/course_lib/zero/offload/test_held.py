"""Where the bytes are, exactly: device, host and disk, between steps and with gradients alive.

The formulas count real numbers of this rank's shards, padding, step counters and file blocks.
"""

from __future__ import annotations

import pytest
import torch

from course_lib.memory import budget, held, tier_of
from course_lib.memory.storages import storages
from course_lib.zero import holdings
from tests.course_lib.zero.offload.parts import FLOAT, WAYS, offloaded, trained
from tests.course_lib.zero.parts import loss_of

FOUR, PAGE = 4, 4096  # bytes of a float32, and what files are filled up to


def pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def real(bucket, rank) -> int:
    return sum(piece.numel for piece in bucket.pieces(rank))


def bytes_by_tier(engine) -> dict[str, int]:
    """Distinct storages of the model, the optimizer, shards, buffers and what offload keeps."""
    shards, home = engine.shards, engine.home
    units = getattr(shards, "units", [])
    mine = [[unit.shard, unit.buffer] for unit in units] + [getattr(shards, "buffers", [])]
    mine += [part for _, part in shards.parts()]
    mine += [engine.gradients.buffers, getattr(home, "_sets", [])]
    mine += [getattr(getattr(home, "reads", None), "_free", None) or []]
    small = [one for kept in getattr(home, "kept", {}).values() for one in kept.small]
    mine += [x for one in small for x in one.values() if isinstance(x, torch.Tensor)]
    state = [value for part in engine.optimizer.state.values() for value in part.values()]
    return held(engine.model, mine, [state]).by_tier


def tiers(me, way, folder, momentum):
    case = FLOAT.but(
        stage=WAYS[way][0], steps=2, accumulate=1, stage3={"prefetch": 1, "persist": 0}
    )
    case = case.but(optimizer="momentum" if momentum else "adamw")
    with budget() as watched:
        engine, _, _ = trained(me, case, offload=offloaded(way, folder))
        stage, plan = WAYS[way]
        buckets = engine.partition.buckets
        own = [real(bucket, me.rank) for bucket in buckets]
        trained_parts = [part for _, part in engine.shards.parts()]
        states = 1 if momentum else 2
        # `never` is in no forward: it has no states, nor a step counter.
        used = [
            (i, piece)
            for i, parts in enumerate(engine.shards.own)
            for piece, _ in parts
            if not piece.slot.name.startswith("never")
        ]
        counters = 0 if momentum else FOUR * len(used)
        with_states = FOUR * sum(piece.numel for _, piece in used)
        whole = FOUR * engine.partition.padded
        shards = FOUR * sum(bucket.cut.shard for bucket in buckets)
        found = bytes_by_tier(engine)
        on_disk = watched.in_use("disk")
        assert holdings(engine) == {**found, "disk": on_disk}, (holdings(engine), found, on_disk)
        if stage < 3:  # whole gradients are kept at stage 1 alone
            assert found["device"] == whole * (2 if stage == 1 else 1), found
        elif "optimizer" not in plan:  # copies of the shards, which wait on the host
            copies = FOUR * sum(own) + states * with_states + counters
            assert found == {"device": copies, "host": shards, "disk": 0}, found
            engine.close()
            return
        elif plan.get("parameters"):
            assert found["device"] == 0, found
        else:
            assert found["device"] == shards, found
        if plan["optimizer"] == "cpu":
            values = shards if plan.get("parameters") else FOUR * sum(own)
            assert found["host"] == values + states * with_states + counters, found
            assert found["disk"] == watched.in_use("disk") == 0
        else:
            files = {i: pages(FOUR * count) * (1 + states) for i, count in enumerate(own) if count}
            assert watched.in_use("disk") == sum(files.values())
            in_folder = {p.name: p.stat().st_size for p in folder.glob(f"*-{me.rank:05d}-*")}
            assert sum(in_folder.values()) == sum(files.values()), in_folder
            sets = min(3, len(files)) * (max(files.values()) + PAGE)
            reads = 2 * (pages(FOUR * max(own)) + PAGE) if plan.get("parameters") == "nvme" else 0
            kept = shards if plan.get("parameters") == "cpu" else 0
            outline = FOUR
            assert found["host"] == sets + reads + kept + outline + counters, (found, sets, reads)
        # A backward later the gradients of this rank's parts are on the host, and nothing else.
        loss, _ = loss_of(case, engine, 7, me.rank, me.world, 0)
        engine.backward(loss)
        grads = [part.grad for part in trained_parts if part.grad is not None]
        assert {tier_of(storage) for storage in storages(grads)} == {"host"}
        sums = held(kinds={"g": grads}).by_kind["g"]
        hit = {i for i, _ in used}
        assert sums == FOUR * sum(count for i, count in enumerate(own) if i in hit), sums
        if stage == 2:
            assert bytes_by_tier(engine)["device"] == whole
        engine.step()
        engine.close()
        assert watched.in_use("disk") == 0


@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_every_byte_is_in_its_tier(pool, way, momentum, tmp_path):
    pool.run(3, tiers, way, tmp_path, momentum, timeout=120)
