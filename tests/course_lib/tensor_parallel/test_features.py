"""Cut layers beside torch's own features: autocast, what is frozen, second derivatives.

What works is held to the numbers without the feature, and what does not is said by a test too.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist

from course_lib import ranks
from course_lib.gpt import MLP, Block, Config
from course_lib.ledger import ledger
from course_lib.tensor_parallel import (
    column_products,
    gathered_products,
    head_cross_entropy,
    parallelize,
    row_product,
    scattered_product,
    shard_mlp,
)
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from tests.course_lib.tensor_parallel.parts import close, held, made, randomized, said

CONFIG = Config.llama(hidden=24, heads=6, kv_heads=2, inner=10, bias=True)
GPT2 = Config.gpt2(vocabulary=9, length=6, layers=1, hidden=15, heads=5, inner=7)


def cut_block(me, config=CONFIG, label="block", dtype=torch.float64):
    dense = randomized(Block(config).to(me.device), label)
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    return parallelize(copy.deepcopy(dense).to(dtype), mesh), dense.to(dtype)


def narrow(me):
    """A block in float32 under autocast to bfloat16, cut and dense; what it sends is narrow too."""
    cut, dense = cut_block(me, dtype=torch.float32)
    where = held(dense, lambda twin: parallelize(twin, ranks.mesh(me, dp=1, tp=me.world)))
    exact = copy.deepcopy(dense)
    x = made("x", 2, 5, 24, dtype=torch.float32, device=me.device)
    owed = made("owed", 2, 5, 24, dtype=torch.float32, device=me.device)
    exact(x).backward(owed)
    kinds = []
    for model in (dense, cut):
        with ledger(axes={"tp": dist.group.WORLD}) as book:
            with torch.autocast(me.device.type, torch.bfloat16):
                y = model(x)
                inner = model.mlp(x)
            y.backward(owed)
            kinds.append((y.dtype, inner.dtype, {r.dtype for r in book.records}))
    assert kinds == [
        (torch.float32, torch.bfloat16, set()),
        (torch.float32, torch.bfloat16, {"bfloat16"}),
    ]
    # bfloat16 keeps 8 bits: a rounding is at most 2^-9 of a number. Some ten of them lie between a
    # gradient and the loss, and a sum over ranks adds one for each; the largest is held to sixteen.
    bound = 16 * 2**-9
    whole, wide = dict(dense.named_parameters()), dict(exact.named_parameters())
    for name, p in cut.named_parameters():
        assert p.grad.dtype == torch.float32 and p.grad.isfinite().all()
        close(f"{name} of the dense one", whole[name].grad, wide[name].grad, bound)
        close(name, p.grad, wide[name].grad.reshape(-1)[where[name]], bound)
        assert not torch.equal(p.grad, wide[name].grad.reshape(-1)[where[name]])  # it was narrow
    # float64 is left alone, as autocast leaves it alone.
    with torch.autocast(me.device.type, torch.bfloat16):
        wide_block, _ = cut_block(me)
        assert wide_block.mlp(x.double()).dtype == torch.float64


def test_autocast_narrows_products_and_messages_and_no_gradient(pool):
    pool.run(2, narrow)


def frozen(me):
    """What does not want a gradient costs no message, and what is frozen stays frozen when cut."""
    dense = randomized(MLP(GPT2).to(me.device), "mlp")
    dense.up.requires_grad_(False)
    mlp = shard_mlp(dense, dist.group.WORLD)
    wants = {name: p.requires_grad for name, p in mlp.named_parameters()}
    counts = []
    for grad in (False, True):
        x = made("x", 3, 15, device=me.device, grad=grad)
        with ledger(axes={"tp": dist.group.WORLD}) as book:
            mlp(x).sum().backward()
        counts.append((book.count(phase="forward"), book.count(phase="backward")))
    with torch.no_grad(), ledger(axes={"tp": dist.group.WORLD}) as book:
        mlp(x)
    return wants, counts, book.count()


def test_what_is_frozen_stays_so_and_sends_nothing(pool):
    wants = {"up.weight": False, "up.bias": False, "down.weight": True, "down.bias": True}
    assert pool.run(2, frozen) == [(wants, [(1, 0), (1, 1)], 1)] * 2


def twice(me):
    """A gradient made with create_graph=True, and the step that would take its own gradient."""
    group, found = dist.group.WORLD, []
    x, w = made("x", 4, 3, grad=True), made("w", 5, 3, grad=True)
    targets, how = torch.arange(4), {"vocabulary": 5 * me.world}
    for y in (
        column_products(x, [w], [None], group)[0],
        row_product(x, w, None, group),
        gathered_products(x[:, None], [w], [None], group, [1] * me.world)[0],
        scattered_product(x[:, None].expand(4, me.world, 3), w, None, group, [1] * me.world),
        cross_entropy(x @ w.t(), targets, group, **how),
        head_cross_entropy(x, w, targets, group, **how),
    ):
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        found.append(said(RuntimeError, first.sum().backward))
    return found


def test_a_second_derivative_without_its_messages_is_refused(pool):
    for found in pool.run(2, twice):
        assert len(found) == 6 and all("once_differentiable" in text for text in found)
