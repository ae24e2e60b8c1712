"""A steady step of DDP, FSDP2, DTensor and DeepSpeed against closed forms written out here."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.ledger import ledger
from course_lib.peers.ways.launched import launched
from course_lib.peers.ways.with_deepspeed import started

FLOAT, BATCH = 4, 4
SIZES = (6, 11, 5)  # no two alike, and 11 and 5 divide by neither 2 nor 3
BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
WORLD = 3
PARAMETERS = 6 * 11 + 11 + 11 * 5 + 5


def two_layers(sizes=SIZES) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.ReLU(), nn.Linear(sizes[1], sizes[2]))


def steady_step(model, mesh=None, wants_input_gradient=False) -> dict:
    """Two steps unrecorded, the third in two nested ledgers; what the outer one has to say."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=False, foreach=False)
    for _ in range(3):
        x = torch.randn(BATCH, SIZES[0], requires_grad=wants_input_gradient)
        with ledger(mesh) as book, ledger(mesh) as inner:
            loss = model(x).square().sum()
            here = sys._getframe().f_lineno - 1
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
    assert [span[:3] for span in inner.spans()] == [span[:3] for span in book.spans()]
    return {
        "sums": {
            (op, axis, phase): (
                book.count(op, axis, phase),
                book.bytes(op, axis, phase, "payload"),
                book.bytes(op, axis, phase, "must"),
            )
            for op, axis, phase in {(r.op, r.axis, r.phase) for r in book.records}
        },
        "issuers": {r.issued_by for r in book.records},
        "sites": {r.phase: r.site for r in book.records},
        "lines": {"forward": here, "backward": here + 2},
        "ended": all(s.end is not None and s.end >= s.start for s in book.spans()),
        "asynchronous": {s.asynchronous for s in book.spans()},
    }


def ddp(me) -> dict:
    model = nn.parallel.DistributedDataParallel(two_layers(), bucket_cap_mb=1e-4)
    return steady_step(model)


def test_a_step_of_ddp_all_reduces_each_gradient_once(pool):
    for found in pool.run(WORLD, ddp):
        ((key, (count, payload, must)),) = found["sums"].items()
        assert key == ("all_reduce", "world", "backward")
        assert count == 2  # the buckets are so small that each layer fills one
        assert payload == PARAMETERS * FLOAT
        assert must * WORLD == pytest.approx(2 * (WORLD - 1) * PARAMETERS * FLOAT, rel=1e-12)
        assert found["issuers"] == {"DDP"}
        assert found["asynchronous"] == {True}
        assert found["ended"]
        assert found["sites"] == {"backward": f"test_ledger_peers.py:{found['lines']['backward']}"}


def fsdp(me, reshard: bool) -> dict:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh(me.device.type, (me.world,), mesh_dim_names=("dp",))
    model = two_layers()
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
    return steady_step(model, mesh)


@pytest.mark.parametrize("reshard", [False, True])
def test_a_step_of_fsdp2_gathers_shards_and_scatters_gradients(pool, reshard):
    # FSDP2 cuts every parameter along its first dim into equal pieces, the last ones padded.
    shard = sum(-(-out // WORLD) * (into + 1) for into, out in pairwise(SIZES)) * FLOAT
    gathered = (2, shard, (WORLD - 1) * shard)
    for found in pool.run(WORLD, fsdp, reshard):
        wanted = {
            ("all_gather", "dp", "forward"): gathered,
            ("reduce_scatter", "dp", "backward"): (2, WORLD * shard, (WORLD - 1) * shard),
        }
        if reshard:
            wanted["all_gather", "dp", "backward"] = gathered
        assert found["sums"] == wanted
        assert found["issuers"] == {"FSDP"}
        assert found["ended"]
        assert found["sites"] == {
            phase: f"test_ledger_peers.py:{line}" for phase, line in found["lines"].items()
        }


def dtensor(me) -> dict:
    from torch.distributed.tensor import parallel

    mesh = dist.init_device_mesh("cpu", (me.world,), mesh_dim_names=("tp",))
    model = two_layers((6, 12, 6))
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh, plan)
    return steady_step(model, mesh, wants_input_gradient=True)


def test_tensor_parallel_dtensors_all_reduce_once_forward_and_once_backward(pool):
    activation = BATCH * 6 * FLOAT
    for found in pool.run(WORLD, dtensor):
        once = (1, activation, 2 * (WORLD - 1) * activation // WORLD)
        assert found["sums"] == {
            ("all_reduce", "tp", "forward"): once,
            ("all_reduce", "tp", "backward"): once,
        }
        assert found["issuers"] == {"DTensor"}
        assert found["ended"]


def redistribute(me) -> list[tuple]:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (me.world,), mesh_dim_names=("tp",))
    sharded = distribute_tensor(torch.ones(6 * me.world, 5), mesh, [Shard(0)])
    owed = DTensor.from_local(torch.ones(me.world, 5), mesh, [Partial()])
    with ledger(mesh) as book, ledger(mesh) as inner:
        sharded.redistribute(mesh, [Replicate()]).to_local().sum()
        owed.redistribute(mesh, [Shard(0)]).to_local().sum()
        torch.relu(owed)  # the operation itself has the sum brought in first
    assert inner.count() == book.count()
    for one in (book, inner):
        assert all(span.end is not None and span.waits for span in one.spans())
    return [(r.op, r.payload, r.must, r.issued_by) for r in book.records]


def test_functional_collectives_are_booked_once_and_end_when_they_are_waited_for(pool):
    shard, owed = 6 * 5 * FLOAT, WORLD * 5 * FLOAT
    for found in pool.run(WORLD, redistribute):
        assert found == [
            ("all_gather", shard, (WORLD - 1) * shard, "DTensor"),
            ("reduce_scatter", owed, owed - 5 * FLOAT, "DTensor"),
            ("all_reduce", owed, 2 * (WORLD - 1) * 5 * FLOAT, "DTensor"),
        ]


def deepspeed_stage_2(me) -> dict:
    warnings.filterwarnings("ignore")
    model = two_layers()
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": 10**4,
            "allgather_bucket_size": 10**4,
        },
        "gradient_clipping": 0.0,
    }
    with launched(me):
        engine, *_ = started(me).initialize(
            model=model, model_parameters=model.parameters(), config=config
        )
        for _ in range(3):
            with ledger(axes={"dp": dist.group.WORLD}) as book:
                loss = engine(torch.randn(BATCH, SIZES[0])).square().sum()
                engine.backward(loss)
                engine.step()
        return {
            "records": [(r.op, r.axis, r.phase, r.payload, r.must) for r in book.records],
            "issuers": {r.issued_by for r in book.records},
            "files": {r.site.split(":")[0] for r in book.records},
        }


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed (pip install 'course_lib[deepspeed]')",
)
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_step_of_deepspeed_stage_2_reduces_in_the_backward_and_gathers_in_the_step(pool, world):
    gradients = PARAMETERS * FLOAT
    shard = -(-PARAMETERS // (2 * world)) * 2 * FLOAT  # DeepSpeed pads to 2 elements a rank
    env = {"DS_ACCELERATOR": "cpu"}
    sums = [2 * (world - 1) * size / world for size in (gradients, FLOAT)]  # overflow? in the step
    for found in pool.run(world, deepspeed_stage_2, timeout=120, env=env, alone=True):
        assert found["records"] == [
            ("all_reduce", "dp", "backward", gradients, sums[0]),
            ("all_reduce", "dp", "step", FLOAT, sums[1]),
            ("all_gather", "dp", "step", shard, (world - 1) * shard),
        ]
        assert found["issuers"] == {"DeepSpeed"}
        assert found["files"] == {"test_ledger_peers.py"}
