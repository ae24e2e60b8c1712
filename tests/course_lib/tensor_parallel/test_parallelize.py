"""A block over the mesh against the dense one, its bytes, and what parallelize refuses.

And the check that copies are copies: each way in which they can drift has to be noticed and named.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from course_lib import ranks
from course_lib.gpt import GPT, Block, Config
from course_lib.ledger import ledger
from course_lib.tensor_parallel import check_replicas, parallelize, shard_attention, shard_mlp
from course_lib.tensor_parallel.parallelize import replicated
from tests.course_lib.tensor_parallel.parts import (
    close,
    held,
    made,
    randomized,
    said,
    same_gradients,
)

BATCH = (2, 5)  # b, s
SIZES = {"vocabulary": 11, "length": 8, "layers": 2}
GPT2 = Config.gpt2(**SIZES, hidden=20, heads=5, inner=13)
LLAMA = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=3, inner=10)
FEW = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=2, inner=9)  # fewer kv heads than ranks


def model_of(config, label, device):
    return randomized(GPT(config).to(device), label)


def one_block(me, config):
    """A block of the model, which is a whole plan too; and what a step of it sends."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    dense = randomized(Block(config).to(me.device), "block")
    cut, where = (
        parallelize(copy.deepcopy(dense), mesh),
        held(dense, lambda m: parallelize(m, mesh)),
    )
    x = made("x", *BATCH, config.hidden, device=me.device, grad=True)
    mine = x.detach().clone().requires_grad_()
    owed = made("owed", *x.shape, device=me.device)
    want = dense(x)
    want.backward(owed)
    with ledger(mesh) as book:
        got = cut(mine)
        got.backward(owed)
    close("y", got, want)
    close("dX", mine.grad, x.grad)
    same_gradients("block", cut, dense, where)
    kinds = [(r.op, r.axis, r.phase, r.elements) for r in book.records]
    return kinds, book.bytes(), book.count("all_reduce", "tp")


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_block_sends_two_sums_forward_and_two_backward(pool, world, family):
    config = {
        "gpt2": GPT2,
        "llama": Config.llama(**SIZES, hidden=24, heads=4, kv_heads=4, inner=10),
    }[family]
    phi = BATCH[0] * BATCH[1] * config.hidden
    four = [("all_reduce", "tp", phase, phi) for phase in 2 * ["forward"] + 2 * ["backward"]]
    for kinds, sent, count in pool.run(world, one_block, config):
        assert kinds == four and count == 4
        assert sent == pytest.approx(8 * phi * (world - 1) / world * 8, rel=1e-12)  # of 8 bytes


def drifted(me):
    """Each way in which copies may differ, on one rank or two; what the check says of it."""
    mesh, group = ranks.mesh(me, dp=1, tp=me.world), dist.group.WORLD
    cut = parallelize(model_of(GPT2, "drift", me.device), mesh)
    check_replicas(cut, group)
    found, names = [], [name for name, _ in replicated(cut)]
    norm, positions = cut.blocks[1].norm_2.weight, cut.positions.weight
    bias = cut.blocks[0].attention.out.bias

    def after(change, *parameters, on=(me.world - 1,)):
        kept = [p.detach().clone() for p in parameters]
        if me.rank in on:
            for p in parameters:
                change(p)
        found.append(said(RuntimeError, check_replicas, cut, group))
        with torch.no_grad():
            for p, before in zip(parameters, kept, strict=True):
                p.copy_(before)

    def last_bit(p):
        p.view(-1)[3] = torch.nextafter(p.view(-1)[3], p.new_tensor(9.0))

    def change_places(p):
        p.view(-1)[[0, 2]] = p.view(-1)[[2, 0]]

    with torch.no_grad():
        after(last_bit, norm)
        after(change_places, positions, on=(1,))
        after(lambda p: p.fill_(float("nan")), bias, on=(0, 1))
        after(lambda p: p.mul_(1 + 1e-6), norm, positions, bias, on=(1, 2))
        cut.blocks[0].mlp.up.weight.mul_(me.rank + 1)  # a part, each rank's own: no copy
    check_replicas(cut, group)
    with torch.no_grad():
        cut.norm.weight[0] = float("nan")  # the same on all: bad, but no drift
    check_replicas(cut, group)
    return names, found


def test_copies_that_differ_are_found_and_named(pool):
    for rank, (names, found) in enumerate(pool.run(3, drifted)):
        assert "blocks.0.attention.out.bias" in names and "blocks.1.mlp.down.bias" in names
        assert "blocks.0.mlp.up.bias" not in names and "blocks.0.mlp.down.weight" not in names
        assert {"positions.weight", "norm.weight", "norm.bias"} <= set(names)
        assert all(f"rank {rank}: " in one for one in found)
        assert "1 of" in found[0] and "differ on rank 2 from rank 0 (blocks.1.norm_2.w" in found[0]
        assert "differ on rank 1 from rank 0 (positions.weight" in found[1]
        assert "rank 2 from rank 0 (blocks.0.attention.out.bias" in found[2]
        assert "3 of" in found[3] and "differ on rank 1 and 2 from rank 0" in found[3]


def drifted_head(me):
    mesh, group = ranks.mesh(me, dp=1, tp=me.world), dist.group.WORLD
    cut = parallelize(model_of(FEW, "head", me.device), mesh)
    check_replicas(cut, group)
    with torch.no_grad():
        weight = cut.blocks[1].attention.qkv.weight  # (q rows, then k and v rows), which are shared
        weight[0] += me.rank  # this rank's own queries: no copy
        check_replicas(cut, group)
        if me.rank == 3:
            weight[-1, 0] = torch.nextafter(weight[-1, 0], weight.new_tensor(9.0))
    # Ranks 0 and 1 hold one head, 2 and 3 the other: the first two have nothing to complain of.
    try:
        check_replicas(cut, group)
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_shared_head_that_drifts_is_found_and_named(pool):
    quiet, also_quiet, *loud = pool.run(4, drifted_head)
    assert quiet == also_quiet == ""
    for one in loud:
        assert "differ on rank 1 from rank 0 (blocks.1.attention.qkv.weight, rows" in one


def fewer_layers(me):
    config = GPT2.changed(layers=1 + (me.rank == 1))
    model = model_of(config, 0, me.device)
    return said(RuntimeError, check_replicas, model, dist.group.WORLD)


def test_a_model_with_other_layers_is_refused_in_words(pool):
    for rank, one in enumerate(pool.run(3, fewer_layers)):
        assert f"rank {rank}: " in one and "do not hold the same model" in one
        assert "the same config" in one


def refused(me):
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    few = Config.llama(**SIZES, hidden=24, heads=4, kv_heads=2)
    other = model_of(GPT2, me.rank, me.device)  # another seed on each rank
    before = [p.detach().clone() for p in other.parameters()]
    found = [said(RuntimeError, parallelize, other, mesh)]
    assert all(map(torch.equal, other.parameters(), before))
    cannot = model_of(few, 0, me.device)
    found.append(said(ValueError, parallelize, cannot, mesh))
    assert isinstance(cannot.blocks[0].mlp.down, nn.Linear)
    words, whole = (model_of(GPT2.changed(vocabulary=v), 0, me.device) for v in (2, 11))
    with ledger() as book:
        found.append(said(ValueError, parallelize, words, mesh))
        found.append(said(ValueError, parallelize, whole, mesh, multiple_of=0))
    assert not book.records and isinstance(words.blocks[0].mlp.up, nn.Linear)
    cut = parallelize(model_of(GPT2, 0, me.device), mesh)
    found.append(said(ValueError, parallelize, cut, mesh))
    block, group = cut.blocks[0], mesh.get_group("tp")
    found.append(said(ValueError, parallelize, block, mesh))
    found.append(said(ValueError, shard_mlp, block.mlp, group))
    found.append(said(ValueError, shard_attention, block.attention, group))
    bare = init_device_mesh(me.device.type, (me.world,))
    named = init_device_mesh(me.device.type, (me.world,), mesh_dim_names=("dp",))
    found += [said(ValueError, parallelize, model_of(GPT2, 0, me.device), m) for m in (bare, named)]
    return found


def test_what_cannot_be_cut_is_refused_before_anything_is_changed(pool):
    for rank, found in enumerate(pool.run(3, refused)):
        assert f"rank {rank}: " in found[0] and "differ on rank 1 and 2 from rank 0" in found[0]
        assert "Was the model made from a different seed there" in found[0]
        assert "2 key/value heads cannot be shared by 3 ranks" in found[1]
        assert "a vocabulary of 2 entries cannot be sharded over 3 ranks" in found[2]
        assert "multiple_of=0" in found[3]
        assert all("sharded already" in one for one in found[4:8])
        assert "(without names)" in found[8] and "no axis 'tp'" in found[8]
        assert "has the axes dp but no axis 'tp'" in found[9]
