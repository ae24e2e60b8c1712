"""Which calls of torch carry a verb: their two names, the native road, the way through the host."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from course_lib import collectives as c
from course_lib.collectives import transport, verbs


@pytest.mark.cpu("names of torch")
@pytest.mark.parametrize(
    ("ours", "new", "old"),
    [
        ("all_gather_single", "all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_single", "reduce_scatter_tensor"),
    ],
)
@pytest.mark.parametrize("has", ["new", "old", "both"])
def test_both_names_of_the_renamed_calls(monkeypatch, ours, new, old, has):
    new_call, old_call = object(), object()
    for name, call, there in ((new, new_call, has != "old"), (old, old_call, has != "new")):
        if there:
            monkeypatch.setattr(dist, name, call, raising=False)
        else:
            monkeypatch.delattr(dist, name, raising=False)
    spec = importlib.util.spec_from_file_location("transport_again", transport.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert getattr(again, ours) is (old_call if has == "old" else new_call)


def take_the_native_road(me, gather_name, scatter_name):
    """What NCCL would be given: the fused calls, under whichever name this torch has for them."""
    if not hasattr(dist, gather_name) or not hasattr(dist, scatter_name):
        pytest.skip(f"this torch does not know {gather_name}")
    used = []

    def watched(name):
        def call(*args, **kwargs):
            used.append(name)
            return getattr(dist, name)(*args, **kwargs)

        return call

    names = {"all_gather_single": gather_name, "reduce_scatter_single": scatter_name}
    fused = {ours: watched(name) for ours, name in names.items()}
    with patch.multiple(verbs, uses_gloo=lambda x, group: False, **fused):
        x = torch.arange(2.0 * me.world, device=me.device) + me.rank
        gathered = c.all_gather(x.view(-1, 2), dist.group.WORLD, dim=1)
        scattered = c.reduce_scatter(x.view(2, -1), dist.group.WORLD, dim=1)
        greatest = c.reduce_scatter(x, dist.group.WORLD, op="max", async_op=True).wait()
        uneven = c.reduce_scatter(x, dist.group.WORLD, sizes=[2 * me.world] + [0] * (me.world - 1))
        root = c.broadcast(x, dist.group.WORLD, me.world - 1)
    assert used == [gather_name, scatter_name, scatter_name]
    n, base = me.world, torch.arange(2.0 * me.world)
    every = [base + r for r in range(n)]
    assert torch.equal(gathered, torch.cat([e.view(-1, 2) for e in every], 1))
    assert torch.equal(scattered, sum(every).view(2, -1)[:, me.rank : me.rank + 1])
    assert torch.equal(greatest, every[-1][2 * me.rank : 2 * me.rank + 2])
    assert torch.equal(uneven, sum(every) if me.rank == 0 else torch.empty(0))
    assert torch.equal(root, every[-1])


@pytest.mark.parametrize(
    "names",
    [
        ("all_gather_single", "reduce_scatter_single"),
        ("all_gather_into_tensor", "reduce_scatter_tensor"),
    ],
)
@pytest.mark.parametrize("world", [2, 3])
def test_the_native_road_gives_the_same(pool, world, names):
    pool.run(world, take_the_native_road, *names)


STAGED = ("all_gather", "reduce_scatter", "scatter", "gather", "all_to_all", "send", "recv")
STAGED_ON_GLOO = {"all_reduce": False, "broadcast": False, **dict.fromkeys(STAGED, True)}


class OnCuda:
    """As much of a CUDA tensor as the choice of a road looks at."""

    is_cuda = True
    device = "cuda:1"

    def cpu(self):
        return "the copy on the host"


@pytest.mark.cpu("a stand-in for a tensor of a GPU")
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize(("op", "staged_on_gloo"), STAGED_ON_GLOO.items())
def test_the_road_of_a_cuda_tensor(op, staged_on_gloo, backend):
    asked = []

    def backend_for(device):
        asked.append(device)
        return SimpleNamespace(name=lambda: backend)

    x, group = OnCuda(), SimpleNamespace(_get_backend=backend_for)
    out, bring_back = transport.on_wire(x, op, group)
    result = SimpleNamespace(to=lambda device: f"brought to {device}")
    if staged_on_gloo and backend == "gloo":
        assert out == "the copy on the host"
        assert bring_back(result) == "brought to cuda:1"
    else:
        assert out is x
        assert bring_back(result) is result
    assert set(asked) <= {"cuda:1"}
