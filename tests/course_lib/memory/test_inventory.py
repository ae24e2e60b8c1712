"""What a rank holds, to the byte, against sums written out by hand."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.memory import held, peak, tier, tier_of

pytestmark = pytest.mark.cpu("tensors of the CPU; test_on_device.py has the GPU's")


class Tied(nn.Module):
    """An embedding whose weight is also the output layer's, a norm with buffers, a frozen part."""

    def __init__(self, vocabulary=11, width=7):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)))


def trained(dtype=torch.float32, **options):
    model = Tied().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    F.cross_entropy(model(torch.arange(9)), torch.arange(9)).backward()
    optimizer.step()
    return model, optimizer


PARAMETERS = 11 * 7 + 7 + 7 + 11  # the tied weight once


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_models_states_to_the_byte(dtype):
    model, optimizer = trained(dtype)
    answer = held(model, optimizer)
    size = dtype.itemsize
    assert answer.by_kind == {
        "parameters": PARAMETERS * size,
        "gradients": PARAMETERS * size,
        "optimizer states": 2 * PARAMETERS * size + 4 * 4,  # moments, and 4 step counts of 4 bytes
        "buffers": 2 * 7 * size + 8,  # mean, variance, and the int64 count of batches
        "activations": 0,
    }
    assert answer.total == sum(answer.by_kind.values())
    assert answer.by_tier == {"device": answer.total, "host": 0, "disk": 0}
    optimizer.zero_grad()
    assert held(model, optimizer).by_kind["gradients"] == 0


def test_an_object_given_twice_counts_once():
    model, optimizer = trained()
    once = held(model, optimizer)
    assert held(optimizer, model, list(model.parameters()), [model]).by_kind == once.by_kind


def test_views_hold_their_whole_storage_once():
    base, array = torch.empty(100), np.zeros(50, dtype=np.float32)
    assert held(base[:10], base[50:], base.view(10, 10)).total == 400
    assert held([base[:1]]).total == 400
    assert held(torch.from_numpy(array), torch.from_numpy(array)).total == 200


def test_placeholders_and_meta_tensors_hold_nothing():
    placeholder = nn.Parameter(torch.empty(0))
    shape_only = nn.Linear(1000, 1000, device="meta")
    emptied = torch.empty(1000)
    emptied.untyped_storage().resize_(0)
    assert held(placeholder, shape_only, emptied).total == 0


def test_kinds_by_name_win():
    model, optimizer = trained()
    bucket = torch.zeros(30)
    model.head.bias.grad = bucket[:11]
    answer = held(model, optimizer, kinds={"buckets": [bucket]})
    assert answer.by_kind["buckets"] == 120
    assert answer.by_kind["gradients"] == (PARAMETERS - 11) * 4


def test_nested_containers_generators_and_sparse_tensors():
    sparse = torch.eye(4).to_sparse()
    values = {"a": [torch.zeros(3)], "b": (torch.zeros(5), {"c": sparse}), "n": 3, "none": None}
    assert held(values).by_kind["tensors"] == 12 + 20 + 4 * 4 + 2 * 4 * 8
    assert held(nn.Linear(3, 2).parameters()).by_kind["parameters"] == 8 * 4


def shards(me):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (me.world,), mesh_dim_names=("tp",))
    weight = nn.Parameter(distribute_tensor(torch.randn(5, 4), mesh, [Shard(0)]))
    optimizer = torch.optim.AdamW([weight])
    weight.to_local().square().sum().backward()
    optimizer.step()
    return held(weight, optimizer).by_kind


def test_a_rank_holds_its_shard_of_a_dtensor(pool):
    for rank, kinds in enumerate(pool.run(2, shards)):
        local = (3, 2)[rank] * 4 * 4
        # distribute_tensor sends equal shards and keeps a view: rank 1 holds a row of padding.
        assert kinds["parameters"] == 3 * 4 * 4
        assert kinds["gradients"] == local
        assert kinds["optimizer states"] == 2 * local + 4


def test_something_else_is_refused_with_a_remedy():
    message = r"cannot look into a Thread.*kinds={'a name': its tensors}"
    with pytest.raises(TypeError, match=message):
        held(threading.Thread())


def test_activations_are_everything_else_alive_even_what_only_the_graph_holds():
    model = nn.Sequential(nn.Linear(50, 60), nn.Sigmoid(), nn.Linear(60, 1))
    x = torch.randn(40, 50)
    before = held(model, x, activations=True).by_kind["activations"]
    loss = model(x).sum()
    # The sigmoid's output has no name: autograd keeps it for the backward. The last layer's output
    # is gone, its sum is 4 bytes.
    kept = held(model, x, activations=True).by_kind["activations"] - before
    assert kept == 40 * 60 * 4 + 4
    del loss
    assert held(model, x, activations=True).by_kind["activations"] == before


def test_reading_the_graph_runs_no_recomputation():
    calls = []

    def unpack(number):
        calls.append(number)
        return torch.zeros(3)

    a = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: 7, unpack):
        b = a.exp()
    held(b, activations=True)
    assert calls == []


def test_activations_of_a_region():
    model = nn.Linear(5, 6)
    with peak() as p:
        y = model(torch.zeros(7, 5))
    assert held(model, activations=p).by_kind["activations"] == 7 * 6 * 4 + 7 * 5 * 4
    assert y.grad_fn is not None
    del y
    assert held(model, activations=p).by_kind["activations"] == 0


def test_tiers_by_block_and_by_file(tmp_path):
    plain = torch.zeros(50)
    with tier("host"):
        made = torch.zeros(20)
        inside = plain.view(2, 25)  # no new storage
        counter = torch.tensor(3.0)  # as an optimizer counts its steps
        filled = made.add_(1)
    path = tmp_path / "states.bin"
    path.write_bytes(bytes(160))
    mapped = torch.from_file(str(path), shared=True, size=40, dtype=torch.float32)
    answer = held(made, inside, filled, counter, mapped, plain)
    assert answer.by_tier == {"device": 200, "host": 80 + 4, "disk": 160}
    assert tier_of(plain.untyped_storage(), computes_on="cuda") == "host"
    with tier("host"):
        plain.mul_(2)
    assert tier_of(plain.untyped_storage()) == "device"
    with pytest.raises(ValueError, match="no tier 'gpu'; the tiers are device, host, disk"):
        tier("gpu")


def test_the_table_is_exact():
    model, optimizer = trained()
    answer = held(model, optimizer, kinds={"b": torch.zeros(500)})
    lines = answer.table().splitlines()
    assert lines[0].split() == ["kind", "tier", "storages", "bytes"]
    assert lines[1].split() == ["b", "device", "1", "2,000", "2.0", "kB"]
    assert lines[2].split() == ["parameters", "device", "4", f"{PARAMETERS * 4}", f"{408}", "B"]
    assert lines[-1].split()[:1] == ["total"]
    assert f"{answer.total:,}" in lines[-1]
    assert str(answer) == answer.table()
