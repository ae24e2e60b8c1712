"""A cut model that is copied, averaged, saved, converted; and what is handed over by mistake.

Either it works as the dense model's does, or the error says what it is, and what to do instead.
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.swa_utils import AveragedModel

import course_lib.tensor_parallel as library
from course_lib import ranks
from course_lib.gpt import GPT, Config
from course_lib.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabularyParallelEmbedding,
    head_cross_entropy,
    parallelize,
    vocabulary_parallel_cross_entropy,
)
from tests.course_lib.tensor_parallel.parts import close, made, randomized, said

LLAMA = {"kv_heads": 1, "norm": "rms", "activation": "swiglu", "position": "rotary", "tied": False}
PLANS = {"gpt2": ({}, {}), "sequence": ({}, {"sequence": True}), "kv": (LLAMA, {"sequence": True})}


def a_model(me, more, plan):
    config = Config(vocabulary=13, hidden=12, layers=2, heads=6, length=7, **more)
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    return parallelize(randomized(GPT(config), "misuse"), mesh, **plan)


def copies(me, which):
    """A copy computes the same, shares no memory, and talks to the same ranks."""
    model = a_model(me, *PLANS[which])
    ids = made("ids", 2, 5).abs().mul(1e4).long() % 13
    twin, before = copy.deepcopy(model), [p.detach().clone() for p in model.parameters()]
    memory = {p.untyped_storage().data_ptr() for p in model.parameters() if p.numel()}
    assert not any(p.untyped_storage().data_ptr() in memory for p in twin.parameters())
    assert torch.equal(twin(ids), model(ids))
    if "sequence" in PLANS[which][1]:
        twin(ids[:, :3])  # of another length, which is the twin's own
        assert (twin.tokens.way.tokens.length, model.tokens.way.tokens.length) == (3, 5)
    vocabulary_parallel_cross_entropy(model(ids), ids, dist.group.WORLD, vocabulary=13).backward()
    assert all(p.grad is None for p in twin.parameters())
    assert (twin.head.weight is twin.tokens.weight) == (model.head.weight is model.tokens.weight)
    average = AveragedModel(model)
    for _ in range(2):
        average.update_parameters(model)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1.0)
    for i, (p, was) in enumerate(zip(average.module.parameters(), before, strict=True)):
        close(f"average {i}", p, was + 0.5)
    with torch.no_grad():
        for p, was in zip(twin.parameters(), before, strict=True):
            p.copy_(was + 0.5)
    close("the average computes", average(ids), twin(ids))
    layer = model.blocks[0].attention.out
    assert copy.copy(layer).weight is layer.weight and copy.copy(layer).group is layer.group
    torch.save(model.state_dict(), io.BytesIO())
    saved = [
        said(TypeError, torch.save, model, io.BytesIO()),
        said(TypeError, pickle.dumps, model),
        said(TypeError, pickle.dumps, layer),
    ]
    if "sequence" in PLANS[which][1]:
        saved.append(said(TypeError, pickle.dumps, model.tokens.way.tokens))
    return saved


@pytest.mark.parametrize(("world", "which"), [(1, "gpt2"), (2, "sequence"), (3, "kv")])
def test_copies_and_averages_work_and_files_are_refused(pool, world, which):
    for saved in pool.run(world, copies, which):
        for text in saved:
            assert "cannot be pickled" in text and "model.state_dict()" in text
            assert "course_lib.pretrained.save" in text


def mistakes(me):
    group = dist.group.WORLD
    model = GPT(Config(vocabulary=13, hidden=8, layers=1, heads=2, length=7))
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    dense, words = nn.Linear(4, 4), nn.Embedding(8, 4)
    column, row = ColumnParallelLinear(dense, group), RowParallelLinear(dense, group)
    table = VocabularyParallelEmbedding(words, group)
    first = DeviceMesh(me.device.type, [0], mesh_dim_names=("tp",))
    outside = said(ValueError, parallelize, model, first) if me.rank else None
    x = torch.ones(2, 4)
    found = {
        "group for a mesh": said(TypeError, parallelize, model, group),
        "no mesh": said(TypeError, parallelize, model, None),
        "other model": said(TypeError, parallelize, nn.Linear(2, 2), mesh),
        "mesh for a group": said(TypeError, ColumnParallelLinear, dense, mesh),
        "axis for a group": said(TypeError, RowParallelLinear, dense, mesh["tp"]),
        "ids": said(TypeError, column, x.long()),
        "ids in rows": said(TypeError, row, x[:, :2].long()),
        "double": said(TypeError, column, x.double()),
        "list": said(TypeError, column, [1.0]),
        "activations": said(TypeError, table, x),
        "mask": said(TypeError, table, x > 0),
        "short ids": said(TypeError, table, x.to(torch.int16)),
    }
    with torch.autocast(me.device.type, torch.bfloat16):
        assert column(x.bfloat16()).shape == (2, 2)
    assert torch.equal(model.head.weight, model.tokens.weight)  # still whole
    return found, outside


def test_what_is_handed_over_by_mistake_is_named(pool):
    answers = pool.run(2, mistakes)
    assert answers[0][0] == answers[1][0]
    found, outside = answers[1]
    assert "a ProcessGroup but must be a DeviceMesh" in found["group for a mesh"]
    assert "DeviceMesh.from_group(group" in found["group for a mesh"]
    assert "a NoneType but must be a DeviceMesh" in found["no mesh"]
    assert "this is a Linear. Shard a different model" in found["other model"]
    for name in ("mesh for a group", "axis for a group"):
        assert "this is a DeviceMesh. For a mesh, pass one axis" in found[name]
    assert "a column-parallel layer takes activations, but got torch.int64" in found["ids"]
    assert "a row-parallel layer takes activations" in found["ids in rows"]
    assert "holds torch.float32 but got torch.float64" in found["double"]
    assert "takes a tensor, but got a list" in found["list"]
    assert "but these are torch.float32" in found["activations"]
    assert "torch.bool" in found["mask"] and "torch.int16" in found["short ids"]
    assert "rank 1 is not in this mesh of ranks [0]" in outside


def test_the_names_that_a_port_needs_are_exported_and_no_file_is_hidden():
    assert all(getattr(library, name) is not None for name in library.__all__)
    assert library.vocabulary_parallel_cross_entropy is library.cross_entropy.cross_entropy
    assert library.head_cross_entropy is head_cross_entropy
    assert library.conjugates.reduce_scatter and library.row_product and library.Tokens
    assert library.padded_vocabulary(13, 4) == 16 and library.extents(nn.Linear(2, 2), None)
