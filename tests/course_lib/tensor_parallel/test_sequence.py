"""Sequence parallelism: products that gather and scatter tokens, and whole models in that plan.

Gradients and weights are the dense model's, also of what every rank holds whole; bytes, messages
and the memory of activations are those of the formulas, with the gathered X kept and without.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import ranks
from course_lib.gpt import GPT, Block, Config
from course_lib.ledger import ledger
from course_lib.tensor_parallel import check_replicas, parallelize
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.randomness import in_step, logical_masks, seed_all
from course_lib.tensor_parallel.sequence import (
    Tokens,
    gathered_products,
    in_bytes,
    scattered_product,
)
from tests.course_lib.tensor_parallel.parts import (
    WORLDS,
    Momentum,
    chunks,
    close,
    fewer,
    held,
    made,
    own,
    randomized,
    said,
    same_gradients,
    same_parameters,
)

B, H, INNER, OUT = 2, 6, 7, 5
SIZES = {"vocabulary": 11, "length": 12, "layers": 2}
GPT2 = Config.gpt2(**SIZES, hidden=20, heads=5, inner=13)
LLAMA = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=3, inner=10)
FEW = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=2, inner=9)  # fewer kv heads than ranks
ONE = Config.llama(**SIZES, hidden=24, heads=4, kv_heads=1, inner=7)
BIASED = LLAMA.changed(bias=True, tied=True, activation="gelu")


# ---- the two products


def products(me):
    """Two columns of one X, a bend, a row: all gradients, for lengths that divide and do not."""
    group, n = dist.group.WORLD, me.world
    for s in (4 * n, 7, 5, 1):
        for keep in (True, False):
            for bias in (True, False):
                name = f"{s} tokens, keep={keep}, bias={bias}"
                x = made("x", B, s, H, grad=True, device=me.device)
                gate, up = (made(k, INNER, H, device=me.device) for k in ("gate", "up"))
                down = made("down", OUT, INNER, device=me.device)
                given = [gate, up, down]
                if bias:
                    given += [made(k, INNER, device=me.device) for k in ("bg", "bu")]
                    given += [made("bd", OUT, device=me.device)]
                dense = [t.clone().requires_grad_() for t in given]
                biases = dense[3:] or [None] * 3
                a, c = F.linear(x, dense[0], biases[0]), F.linear(x, dense[1], biases[1])
                want = F.linear(F.silu(a) * c, dense[2], biases[2])
                mine = [
                    own(t, group, -1 if i == 2 else 0).clone() if i != 5 else t.clone()
                    for i, t in enumerate(given)
                ]
                mine = [t.requires_grad_() for t in mine]
                part = own(x.detach(), group, 1).clone().requires_grad_()
                biases, sizes = mine[3:] or [None] * 3, chunks(s, n)
                a, c = gathered_products(part, mine[:2], biases[:2], group, sizes, keep=keep)
                got = scattered_product(F.silu(a) * c, mine[2], biases[2], group, sizes)
                close(f"Y: {name}", got, own(want.detach(), group, 1))
                owed = made("owed", *want.shape, device=me.device)
                want.backward(owed)
                got.backward(own(owed, group, 1))
                close(f"dX: {name}", part.grad, own(x.grad, group, 1))
                for i, (one, whole) in enumerate(zip(mine, dense, strict=True)):
                    grad = whole.grad if i == 5 else own(whole.grad, group, -1 if i == 2 else 0)
                    close(f"gradient {i}: {name}", one.grad, grad)


@pytest.mark.parametrize("world", WORLDS)
def test_gathered_and_scattered_products_are_the_dense_ones(pool, world):
    pool.run(world, products)


def pair(me, s, keep, frozen):
    """The messages of one pair of layers: (op, phase, elements handed over, bytes that must)."""
    group = dist.group.WORLD
    sizes = chunks(s, me.world)
    x = made("x", B, sizes[me.rank], H).float().requires_grad_("x" not in frozen)
    up = torch.randn(3, H, requires_grad="weight" not in frozen)
    down = torch.randn(H, 3, requires_grad=True)
    with ledger() as book:
        (a,) = gathered_products(x, [up], [None], group, sizes, keep=keep)
        scattered_product(a.tanh(), down, None, group, sizes).sum().backward()
    total = {phase: book.bytes(phase=phase) for phase in ("forward", "backward")}
    return [(r.op, r.phase, r.elements, r.must) for r in book.records], total


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("keep", [True, False])
def test_a_pair_of_layers_sends_the_bytes_of_the_formula(pool, world, keep):
    s, row = 4 * world, B * H
    form = in_bytes(B, s, H, world, 4, keep=keep)
    move = (world - 1) / world * B * s * H * 4
    assert (
        form["all"]
        == pytest.approx((4 if keep else 5) * move)
        == sum(form[phase] for phase in ("forward", "backward"))
    )
    backward = [("all_gather", "backward", 4 * row)] + [("all_gather", "backward", 4 * row)] * (
        not keep
    )
    want = [("all_gather", "forward", 4 * row), ("reduce_scatter", "forward", s * row)]
    want += backward + [("reduce_scatter", "backward", s * row)]
    for records, total in pool.run(world, pair, s, keep, ()):
        assert sorted(r[:3] for r in records) == sorted(want)
        assert total == {phase: pytest.approx(form[phase], rel=1e-12) for phase in total}
    # A length that does not divide: each rank sends its own tokens, and others' parts of a sum.
    for rank, (records, _) in enumerate(pool.run(world, pair, 7, keep, ())):
        mine = chunks(7, world)[rank] * row * 4
        musts = {"all_gather": (world - 1) * mine, "reduce_scatter": 7 * row * 4 - mine}
        assert all(must == musts[op] for op, _, _, must in records)
        assert len(records) == (4 if keep else 5)


def test_what_needs_no_gradient_sends_nothing_for_it(pool):
    for records, _ in pool.run(2, pair, 6, False, ("weight",)):  # X is not needed again
        ops = [(op, phase) for op, phase, *_ in records]
        assert ops.count(("all_gather", "backward")) == 1
    for records, _ in pool.run(2, pair, 6, False, ("x",)):
        assert ("reduce_scatter", "backward") not in [(op, phase) for op, phase, *_ in records]


def narrow(me):
    """Under autocast, as torch's own linear: products in bf16, gradients in the weights' dtype."""
    group, s = dist.group.WORLD, 7
    sizes = chunks(s, me.world)
    whole = made("narrow", B, s, H).float().to(me.device)
    x = own(whole, group, 1).clone().requires_grad_()
    weight = made("narrow up", INNER, H).float().to(me.device)
    down = made("narrow down", OUT, INNER).float().to(me.device)
    up, rows = own(weight, group, 0).clone(), own(down, group, 1).clone()
    with torch.autocast(me.device.type, torch.bfloat16):
        (a,) = gathered_products(x, [up.requires_grad_()], [None], group, sizes, keep=False)
        y = scattered_product(a, rows.requires_grad_(), None, group, sizes)
    y.float().sum().backward()
    assert a.dtype == y.dtype == torch.bfloat16
    close("y", y.float(), own(whole @ weight.t() @ down.t(), group, 1), 0.03)
    assert x.grad.dtype == up.grad.dtype == rows.grad.dtype == torch.float32
    want = (torch.ones(B * s, OUT, device=me.device) @ down).t() @ whole.flatten(0, 1)
    close("dW", up.grad, own(want, group, 0), 0.03)


def test_autocast_narrows_the_products_and_their_messages(pool):
    pool.run(3, narrow)


# ---- whole models


def batch(label, config, s, device):
    ids, targets = ((made((label, k), B, s) * 999).long().abs() for k in ("ids", "to"))
    return (ids % config.vocabulary).to(device), (targets % config.vocabulary).to(device)


def loss_of(model, ids, targets, config, group=None):
    logits = model(ids)
    if group is None:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert logits.shape[1] == ids.shape[1]  # of all tokens, this rank's words
    return cross_entropy(logits, targets, group, vocabulary=config.vocabulary)


def trained(me, configs, dp, keep):
    """Three steps on sequences of three lengths, down to fewer tokens than ranks."""
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    group, replica = mesh.get_group("tp"), mesh.get_local_rank("dp")
    missing = []
    for number, config in enumerate(configs):
        dense = randomized(GPT(config).to(me.device), number)
        cut = parallelize(copy.deepcopy(dense), mesh, sequence=True, keep=keep)
        where = held(dense, lambda twin: parallelize(twin, mesh, sequence=True))
        missing.append(fewer(where, dense))
        descents = Momentum(dense, lr=0.05), Momentum(cut, lr=0.05)
        for step, s in enumerate((7, 8, 2)):
            data = batch((number, step, replica), config, s, me.device)
            losses = loss_of(dense, *data, config), loss_of(cut, *data, config, group)
            close(f"{number}: loss of {s} tokens", losses[1], losses[0])
            for loss in losses:
                loss.backward()
            same_gradients(f"{number}, {s} tokens", cut, dense, where)
            for descent in descents:
                descent.step()
            same_parameters(f"{number} after {step + 1} steps", cut, dense, where)
            check_replicas(cut, group)
    return missing


@pytest.mark.parametrize(
    ("world", "dp", "configs", "keep"),
    [
        (1, 1, [GPT2, ONE], True),
        (2, 1, [GPT2, BIASED], False),
        (3, 1, [GPT2, LLAMA], True),
        (4, 1, [GPT2, FEW, ONE], False),
        (4, 2, [GPT2, ONE], True),
    ],
)
def test_a_model_with_cut_tokens_trains_as_the_dense_one(pool, world, dp, configs, keep):
    for missing in pool.run(world, trained, configs, dp, keep):
        assert min(missing) > 0 or world == 1


def with_dropout(me, config, keep):
    """Masks by logical index, blocks run again in backward: the dense model, dropout and all."""
    config = config.changed(dropout=0.2, attention_dropout=0.3)
    mesh, group = ranks.mesh(me, dp=1, tp=me.world), dist.group.WORLD
    dense = randomized(GPT(config).to(me.device), "dropout")
    again = GPT(config.changed(recompute=True)).to(me.device).double()
    again.load_state_dict(dense.state_dict())
    cut = parallelize(again, mesh, sequence=True, keep=keep)
    where = held(dense, lambda twin: parallelize(twin, mesh, sequence=True))
    losses = []
    for model, over in ((dense, None), (cut, group)):
        seed_all(3)
        descent = Momentum(model, lr=0.05)
        losses.append([])
        for step in range(2):
            with logical_masks():
                loss = loss_of(model, *batch(step, config, 7, me.device), config, over)
                loss.backward()
            losses[-1].append(loss.detach())
            descent.step()
    for step in range(2):
        close(f"loss {step}", losses[1][step], losses[0][step])
    same_parameters("after 2 steps with dropout", cut, dense, where)
    # With torch's own masks: each rank's are its own, the shared stream stays in step, and what
    # is recomputed is what was: a second backward through another forward of that seed agrees.
    data = batch("own", config, 7, me.device)
    grads = []
    for _ in range(2):
        seed_all(4)
        loss_of(cut, *data, config, group).backward()
        in_step(group)
        grads.append([p.grad for p in cut.parameters()])
        for p in cut.parameters():
            p.grad = None
    assert all(map(torch.equal, *grads))
    descent = Momentum(cut, lr=0.05)
    loss_of(cut, *data, config, group).backward()
    descent.step()
    check_replicas(cut, group)
    # The masks of two ranks' tokens have nothing in common.
    seed_all(5)
    ones = torch.ones(1, 8, 500, device=me.device, dtype=torch.float64)
    cut.dropout.tokens.length = 8 * me.world
    mine = cut.dropout(ones)
    assert 0.75 < (mine > 0).double().mean() < 0.85
    every = torch.empty(me.world, *mine.shape, device=me.device, dtype=mine.dtype)
    dist.all_gather_into_tensor(every, mine[None].contiguous())
    for other in range(me.world):
        if other != me.rank:
            same = ((every[other] > 0) == (mine > 0)).double().mean()
            assert 0.64 < same < 0.72  # 0.8² + 0.2² = 0.68 by chance
    cut.eval()
    assert torch.equal(cut.dropout(ones), ones)


@pytest.mark.parametrize(
    ("world", "config", "keep"), [(2, GPT2, True), (3, LLAMA, False), (4, FEW, True)]
)
def test_dropout_of_cut_tokens_is_the_whole_sequences(pool, world, config, keep):
    pool.run(world, with_dropout, config, keep)


def step_messages(me, config, s, keep):
    """Every message of a step, of whatever model: (op, phase, elements, must)."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    torch.manual_seed(0)
    cut = parallelize(GPT(config), mesh, sequence=True, keep=keep)
    data = batch("ledger", config, s, me.device)
    with ledger(mesh) as book:
        loss_of(cut, *data, config, mesh.get_group("tp")).backward()
    records = [(r.op, r.phase, r.elements, r.must) for r in book.records]
    sums = [r for r in book.records if r.op == "all_reduce" and r.phase == "backward"]
    return records, [(r.axis, r.elements, r.site) for r in sums]


@pytest.mark.parametrize(
    ("world", "config", "keep"),
    [(2, GPT2, True), (3, GPT2, False), (2, LLAMA.changed(heads=4, kv_heads=2), True)],
)
def test_a_step_sends_what_the_formulas_say(pool, world, config, keep):
    s, h, layers = 4 * world, config.hidden, config.layers
    pairs, phi = 2 * layers + 1, B * s * h  # the table and the head are a pair too
    gpt2 = config is GPT2
    for records, sums in pool.run(world, step_messages, config, s, keep):
        form = in_bytes(B, s, h, world, 4, keep=keep)
        tokens = [r for r in records if r[2] in (phi, phi // world)]
        for phase in ("forward", "backward"):
            sent = sum(must for _, one, _, must in tokens if one == phase)
            assert sent == pytest.approx(pairs * form[phase], rel=1e-12)
            assert (
                len([r for r in tokens if r[1] == phase])
                == (2 if phase == "forward" or keep else 3) * pairs
            )
        rest = [r for r in records if r not in tokens]
        # Each norm's weights in one message, on a line of their own in the book.
        norm = (2 if gpt2 else 1) * h
        assert [(axis, elements) for axis, elements, _ in sums] == (2 * layers + 1) * [("tp", norm)]
        assert len({site for *_, site in sums}) >= 1
        want = [("all_reduce", "backward", norm)] * (2 * layers + 1)
        want += [("all_reduce", "forward", k * B * s) for k in (1, 2)]  # the loss
        want += [("all_gather", "backward", s // world * h)] * gpt2  # of the table of positions
        assert sorted(r[:3] for r in rest) == sorted(want)


def strange_uses(me):
    """What the plan cannot know by itself: another sequence in between, a copy, a block alone."""
    mesh, group = ranks.mesh(me, dp=1, tp=me.world), dist.group.WORLD
    config = GPT2.changed(recompute=True)
    cut = parallelize(randomized(GPT(config).to(me.device), "strange"), mesh, sequence=True)
    short, long = (batch("strange", config, s, me.device) for s in (3, 9))
    first = loss_of(cut, *short, config, group)
    twin = copy.deepcopy(cut)
    loss_of(twin, *long, config, group)  # a copy counts its own tokens
    assert (cut.dropout.tokens.length, twin.dropout.tokens.length) == (3, 9)
    assert twin.blocks[0].norm_1.norm[0].weight is twin.blocks[0].norm_1.weight
    first.backward()
    first = loss_of(cut, *short, config, group)
    loss_of(cut, *long, config, group)
    found = [said(ValueError, first.backward)]
    tokens = Tokens(group)
    tokens.length = 6
    x = made("x", B, 6, GPT2.hidden, device=me.device)
    found.append(said(ValueError, cut.head, x))
    found.append(said(ValueError, tokens.check, x, "this layer"))
    assert tokens.check(own(x, group, 1), "this layer") == [2, 2, 2]
    assert tokens.span() == (2 * me.rank, 2 * me.rank + 2)
    block = Block(GPT2).to(me.device)
    found.append(said(ValueError, parallelize, block, mesh, sequence=True))
    assert isinstance(block.mlp.up, torch.nn.Linear)  # and nothing was changed
    found.append(said(ValueError, parallelize, cut, mesh, sequence=True))
    # Without recomputation sequences may overlap: each remembers its own lengths.
    plain = parallelize(randomized(GPT(GPT2).to(me.device), "strange"), mesh, sequence=True)
    losses = [loss_of(plain, *data, config, group) for data in (short, long)]
    alone = []
    for loss in losses:
        alone.append(torch.autograd.grad(loss, plain.norm.weight, retain_graph=True)[0])
    dense = randomized(GPT(GPT2).to(me.device), "strange")
    for got, data in zip(alone, (short, long), strict=True):
        (want,) = torch.autograd.grad(loss_of(dense, *data, config), dense.norm.weight)
        close("sequences that overlap", got, want)
    return found


def test_what_the_plan_cannot_know_is_refused(pool):
    for rank, found in enumerate(pool.run(3, strange_uses)):
        assert (
            f"rank {rank}: a layer that gathers tokens takes this rank's 3 of 9 tokens" in found[0]
        )
        assert "before the backward of this one had recomputed it" in found[0]
        assert "a layer that gathers tokens takes this rank's 3 of 9 tokens" in found[1]
        assert "this layer takes this rank's 2 of 6 tokens along dim 1" in found[2]
        assert "sequence=True needs the full model" in found[3]
        assert "sharded already" in found[4]
