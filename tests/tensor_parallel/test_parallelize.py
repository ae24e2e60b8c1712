"""Blocks and whole models over the mesh against the dense ones: logits, gradients, training, bytes.

And the check that copies are copies: each way in which they can drift has to be noticed and named.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from course_lib import ranks
from course_lib.gpt import GPT, Block, Config
from course_lib.ledger import ledger
from course_lib.tensor_parallel import check_replicas, parallelize
from course_lib.tensor_parallel.conjugates import gather
from course_lib.tensor_parallel.parallelize import replicated
from course_lib.tensor_parallel.randomness import in_step, logical_masks, seed_all
from tests.tensor_parallel.parts import (
    Momentum,
    chunks,
    close,
    fewer,
    held,
    made,
    randomized,
    said,
    same_gradients,
    same_parameters,
)

BATCH = (2, 5)  # b, s
SIZES = {"vocabulary": 11, "length": 8, "layers": 2}
GPT2 = Config.gpt2(**SIZES, hidden=20, heads=5, inner=13)
LLAMA = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=3, inner=10)
FEW = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=2, inner=9)  # fewer kv heads than ranks
ONE = Config.llama(**SIZES, hidden=24, heads=4, kv_heads=1, inner=7)
BIASED = LLAMA.changed(bias=True, tied=True, activation="gelu")
CONFIGS = {1: [GPT2], 2: [GPT2, BIASED, ONE], 3: [GPT2, LLAMA, ONE], 4: [GPT2, FEW, ONE]}


def model_of(config, label, device):
    return randomized(GPT(config).to(device), label)


def tokens(label, config, device):
    x = (made(label, *BATCH) * 1000).long().abs() % config.vocabulary
    return x.to(device)


def logits_of(model, ids, config, group):
    """All logits; a rank that computes some words' alone hears the others'."""
    part = model(ids)  # (b, s, v) or (b, s, v/tp)
    if part.shape[-1] == config.vocabulary:
        return part
    sizes = chunks(config.vocabulary, group.size())
    return gather(part, group, -1, sizes, after="replicated")


def loss_of(model, label, config, group, device):
    ids, labels = (tokens((label, k), config, device) for k in ("ids", "labels"))
    return F.cross_entropy(logits_of(model, ids, config, group).flatten(0, 1), labels.flatten())


def trained(me, configs, dp):
    """Each config: logits, gradients and weights over three steps; copies stay copies."""
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    replica, group = mesh.get_local_rank("dp"), mesh.get_group("tp")
    missing = []
    for number, config in enumerate(configs):
        dense = model_of(config, number, me.device)
        cut = parallelize(copy.deepcopy(dense), mesh)
        where = held(dense, lambda twin: parallelize(twin, mesh))
        missing.append(fewer(where, dense))
        ids = tokens("ids", config, me.device)
        close("logits", logits_of(cut, ids, config, group), dense(ids))
        descents = Momentum(dense, lr=0.05), Momentum(cut, lr=0.05)
        for step in range(3):
            label = (number, step, replica)
            losses = [loss_of(m, label, config, group, me.device) for m in (dense, cut)]
            close("loss", losses[1], losses[0])
            for loss in losses:
                loss.backward()
            same_gradients(f"{number}, step {step}", cut, dense, where)
            for descent in descents:
                descent.step()
            same_parameters(f"{number} after {step + 1} steps", cut, dense, where)
            check_replicas(cut, group)
    return missing


@pytest.mark.parametrize(("world", "dp"), [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2)])
def test_a_whole_model_trains_as_the_dense_one(pool, world, dp):
    for missing in pool.run(world, trained, CONFIGS[world // dp], dp):
        assert min(missing) > 0 or world == 1


def with_adamw(me):
    """torch's own AdamW with decay: its moments are those of the parts."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    dense = model_of(GPT2, "adamw", me.device)
    cut, where = (
        parallelize(copy.deepcopy(dense), mesh),
        held(dense, lambda m: parallelize(m, mesh)),
    )
    steps = [torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1) for m in (dense, cut)]
    for step in range(3):
        for model, adamw in zip((dense, cut), steps, strict=True):
            adamw.zero_grad()
            loss_of(model, step, GPT2, dist.group.WORLD, me.device).backward()
            adamw.step()
        # Adam divides by a gradient's size: where that is near nothing, rounding grows.
        same_parameters(f"after {step + 1} steps", cut, dense, where, bound=1e-8)
    name = "blocks.0.mlp.up.weight"
    whole, mine = (
        opt.state[dict(m.named_parameters())[name]]["exp_avg"]
        for opt, m in zip(steps, (dense, cut), strict=True)
    )
    close("exp_avg", mine, whole.reshape(-1)[where[name]], 1e-9)


def test_three_steps_of_adamw_are_the_dense_ones(pool):
    pool.run(3, with_adamw, timeout=60)  # torch's optimizers bring its compiler along


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


@pytest.mark.parametrize("world", [2, 3, 4])
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


def with_dropout(me, config, recompute):
    """All three dropouts, masks by logical index: three steps of the cut model are the dense."""
    config = config.changed(dropout=0.2, attention_dropout=0.3, recompute=recompute)
    mesh, group = ranks.mesh(me, dp=1, tp=me.world), dist.group.WORLD
    dense = model_of(config, "dropout", me.device)
    cut, where = (
        parallelize(copy.deepcopy(dense), mesh),
        held(dense, lambda m: parallelize(m, mesh)),
    )
    losses = []
    for model in (dense, cut):
        seed_all(3)
        descent = Momentum(model, lr=0.05)
        losses.append([])
        for step in range(3):
            with logical_masks():
                loss = loss_of(model, step, config, group, me.device)
                loss.backward()
            losses[-1].append(loss.detach())
            descent.step()
    for step in range(3):
        close(f"loss {step}", losses[1][step], losses[0][step])
    same_parameters("after 3 steps with dropout", cut, dense, where)
    cut.eval()
    assert not torch.allclose(loss_of(cut, 0, config, group, me.device), losses[1][0])
    # And with torch's own masks: each rank's heads drop out by themselves, copies stay copies.
    seed_all(4)
    descent = Momentum(cut.train(), lr=0.05)
    for step in range(2):
        loss_of(cut, step, config, group, me.device).backward()
        descent.step()
        check_replicas(cut, group)
        in_step(group)


@pytest.mark.parametrize(
    ("world", "config", "recompute"), [(2, GPT2, True), (3, LLAMA, False), (4, FEW, False)]
)
def test_dropout_on_copies_is_shared_and_inside_heads_is_not(pool, world, config, recompute):
    # Recomputation brings torch's compiler along, which takes seconds.
    pool.run(world, with_dropout, config, recompute, timeout=60 if recompute else None)


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
        assert "1 of" in found[0] and "differ on rank 2 from rank 0: blocks.1.norm_2.w" in found[0]
        assert "differ on rank 1 from rank 0: positions.weight" in found[1]
        assert "rank 2 from rank 0: blocks.0.attention.out.bias" in found[2]
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
        assert "differ on rank 1 from rank 0: blocks.1.attention.qkv.weight, rows" in one


def fewer_layers(me):
    config = GPT2.changed(layers=1 + (me.rank == 1))
    model = model_of(config, 0, me.device)
    return said(RuntimeError, check_replicas, model, dist.group.WORLD)


def test_a_model_with_other_layers_is_refused_in_words(pool):
    for rank, one in enumerate(pool.run(3, fewer_layers)):
        assert f"rank {rank}: " in one and "do not hold the same model" in one
        assert "another config" in one


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
    cut = parallelize(model_of(GPT2, 0, me.device), mesh)
    found.append(said(ValueError, parallelize, cut, mesh))
    found.append(said(ValueError, parallelize, cut.blocks[0], mesh))
    bare = init_device_mesh(me.device.type, (me.world,))
    named = init_device_mesh(me.device.type, (me.world,), mesh_dim_names=("dp",))
    found += [said(ValueError, parallelize, model_of(GPT2, 0, me.device), m) for m in (bare, named)]
    return found


def test_what_cannot_be_cut_is_refused_before_anything_is_changed(pool):
    for rank, found in enumerate(pool.run(3, refused)):
        assert f"rank {rank}: " in found[0] and "differ on rank 1 and 2 from rank 0" in found[0]
        assert "Was the model made from another seed there" in found[0]
        assert "2 key/value heads cannot be shared by 3 ranks" in found[1]
        assert "cut already" in found[2] and "cut already" in found[3]
        assert "(without names)" in found[4] and "no axis 'tp'" in found[4]
        assert "has the axes dp and no axis 'tp'" in found[5]


def test_a_config_that_cannot_be_is_refused_before_any_rank_starts():
    assert "did you mean 'kv_heads'?" in said(ValueError, Config.read, {"kv_head": 2})
    assert "hidden=20 does not divide into heads=6" in said(ValueError, Config, hidden=20, heads=6)
    assert "cannot be shared out over kv_heads=4" in said(
        ValueError, Config, hidden=24, heads=6, kv_heads=4
    )
