"""A checkpoint into torch's own sharded models: each rank reads the box that its DTensor is."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from course_lib import checkpoint, ranks
from course_lib.checkpoint.dtensors import box_of, local_of
from tests.course_lib.checkpoint.parts import FAMILIES, Layout, engine_of, losses

STEP = "step-000001"


def saved(me, folder: str) -> None:
    with engine_of(me, Layout("1x2", 2), folder, "llama", torch.float32) as (engine, mesh):
        losses(engine, mesh, 0, 1)
        checkpoint.save(folder, 1, engine, mesh)


def into_fsdp(me, folder: str) -> tuple:
    """A transformers model under fully_shard, filled by ranges; its logits, and what was read."""
    from course_lib.pretrained.config import to_transformers

    transformers = pytest.importorskip("transformers")
    keys = to_transformers(FAMILIES["llama"], torch.float32, None)
    config = transformers.LlamaConfig.from_dict(keys)
    config._attn_implementation = "eager"
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    fully_shard(model, mesh=DeviceMesh.from_group(mesh.get_group("dp"), me.device.type))
    model.to_empty(device=me.device)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are in no file
    with checkpoint.OpenCheckpoint(f"{folder}/{STEP}") as stored, torch.no_grad():
        for name, x in model.state_dict().items():
            local_of(x).copy_(stored.model.read(name, box_of(x)))
        read = stored.model.bytes
    ids = torch.arange(7, device=me.device)[None] % 23
    with torch.no_grad():
        logits = model(ids).logits.cpu()
    whole = sum(slot.stop - slot.start for slot in stored.model.slots.values())
    return logits, read, whole


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_fully_shard_takes_its_shards(pool, tmp_path, world):
    pool.run(2, saved, str(tmp_path))
    transformers = pytest.importorskip("transformers")
    dense = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / STEP)
    with torch.no_grad():
        want = dense.eval()(torch.arange(7)[None] % 23).logits
    reports = pool.run(world, into_fsdp, str(tmp_path))
    for logits, _, _ in reports:
        torch.testing.assert_close(logits, want, rtol=1e-5, atol=1e-5)
    assert sum(read for _, read, _ in reports) == reports[0][2]  # each byte by one rank


PLACEMENTS = [
    (Shard(0), Shard(1)), (Shard(1), Shard(0)), (Shard(0), Shard(0)), (Replicate(), Shard(1)),
    (Shard(1), Replicate()), (Replicate(), Replicate()),
]  # fmt: skip


def boxes(me) -> list[bool]:
    mesh = ranks.mesh(me, dp=2, tp=2)
    x = torch.arange(7 * 5.0).view(7, 5)
    shards = [distribute_tensor(x, mesh, placements) for placements in PLACEMENTS]
    right = [torch.equal(x[box_of(shard).slices], local_of(shard)) for shard in shards]
    return [*right, torch.equal(x[box_of(x).slices], local_of(x))]


def test_the_box_of_a_shard_is_what_it_holds(pool):
    assert all(all(right) for right in pool.run(4, boxes))
