"""What one step sends, agrees on and refuses; which parameters decay, and what a bucket holds."""

from __future__ import annotations

import copy
import math
import re

import pytest
import torch
import torch.distributed as dist

from course_lib import ranks
from course_lib.gpt import GPT
from course_lib.ledger import ledger
from course_lib.norms import norm
from course_lib.step import NotFinite, gradient_pieces, groups, step
from course_lib.step.buckets import buckets, sum_gradients
from course_lib.tensor_parallel import parallelize
from tests.course_lib.step.parts import FEW, GPT2, LLAMA, batch, share
from tests.course_lib.tensor_parallel.parts import Momentum, made, randomized, said


def cut_model(me, mesh, config=GPT2, label="step", **lay):
    return parallelize(randomized(GPT(config), label).to(me.device), mesh, **lay)


def own_rows(me, mesh, number, config=GPT2):
    replicas = mesh.get_group("dp")
    start, stop = share(3, replicas.size(), replicas.rank())
    return [[x[start:stop].to(me.device) for x in batch(number, config, 3, 7)]]


def messages(me, dp, clip):
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    cut = cut_model(me, mesh)
    size = sum(p.numel() for p in cut.parameters())
    rows = own_rows(me, mesh, 0)
    with ledger(mesh) as book:
        step(cut, Momentum(cut), rows, mesh, clip=clip)
    over = {
        axis: [r.elements for r in book.records if r.axis == axis and r.elements <= 4]
        for axis in ("tp", "dp")
    }
    with ledger(mesh) as few:
        step(cut, Momentum(cut), rows, mesh, clip=clip, bucket_bytes=size * 8 // 3)
    wide = [r.elements for r in book.records if r.axis == "dp" and r.elements > 4]
    thirds = [r.elements for r in few.records if r.axis == "dp" and r.elements > 4]
    return size, over, wide, thirds


@pytest.mark.parametrize(("dp", "clip"), [(2, 0.3), (2, None), (1, 0.3)])
def test_replicas_meet_in_one_buffer_and_two_small_sums(pool, dp, clip):
    for size, small, wide, thirds in pool.run(2 * dp, messages, dp, clip):
        assert small["tp"] == [4, 1]  # what all have to know, the norm
        assert small["dp"] == ([4, 1] if dp > 1 else [1])  # norms asks every axis
        assert wide == ([size] if dp > 1 else [])
        if dp > 1:
            assert sum(thirds) == size and 3 <= len(thirds) <= 5


def broken(me, dp, where, kind):
    """One rank's loss, or one shard's gradient, is NaN or infinite: all raise, none has stepped."""
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    cut = cut_model(me, mesh, LLAMA)
    rows = own_rows(me, mesh, 0, LLAMA)
    if kind == "loss" and me.rank == where:
        with torch.no_grad():
            cut.norm.weight[0] = math.nan
    if kind == "gradient" and me.rank == where:
        cut.blocks[0].mlp.down.weight.register_hook(lambda grad: grad * math.inf)
    before = copy.deepcopy([p.detach() for p in cut.parameters()])
    told = []
    for clip in (None, 0.5):
        descent = Momentum(cut)
        told.append(said(NotFinite, step, cut, descent, rows, mesh, clip=clip))
        assert not any(v.any() for v in descent.velocities)
    for p, was in zip(cut.parameters(), before, strict=True):
        assert torch.equal(p.detach().nan_to_num(7.0), was.nan_to_num(7.0))
    return told


@pytest.mark.parametrize(
    ("dp", "where", "kind"), [(1, 2, "gradient"), (2, 1, "gradient"), (2, 3, "loss")]
)
def test_what_is_not_finite_on_one_rank_stops_all_before_the_update(pool, dp, where, kind):
    every = pool.run(3 if dp == 1 else 4, broken, dp, where, kind)
    assert all(one == every[0] for one in every)
    for text in every[0]:
        assert kind in text and re.search(rf"on rank {where}\b", text), text
        if kind == "gradient":
            assert "blocks.0.mlp.down.weight is not finite" in text
        if (dp, kind) == (1, "gradient"):
            assert text.count("on rank") == 1


def wishes(me, dp):
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    cut = cut_model(me, mesh)
    found = []
    for who in (*range(me.world), None):
        rows = own_rows(me, mesh, 0)
        found.append(step(cut, Momentum(cut), rows, mesh, stop=me.rank == who))
    return [one.stop for one in found], [tuple(one) for one in found]


@pytest.mark.parametrize("dp", [1, 2])
def test_one_rank_that_wants_to_stop_stops_all_after_the_same_step(pool, dp):
    every = pool.run(4, wishes, dp)
    for stops, results in every:
        assert stops == [True] * 4 + [False]
        assert results == every[0][1]  # losses and norms to the last bit


def counted_once(me, config, dp, lay):
    """The norm of a cut model's gradients is that of the dense model's."""
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    dense = randomized(GPT(config), "pieces").to(me.device)
    cut = parallelize(copy.deepcopy(dense), mesh, **lay)
    ids, targets = (x.to(me.device) for x in batch(0, config, 3, 7))
    wanted, found = [], []
    for model, where, into in ((dense, None, wanted), (cut, mesh, found)):
        keep = _Keep(model, where, into)
        rows = [(ids, targets)] if where is None else own_rows(me, mesh, 0, config)
        assert step(model, keep, rows, where).norm == pytest.approx(into[0], rel=1e-12)
    assert found[0] == pytest.approx(wanted[0], rel=1e-10)
    if lay.get("multiple_of"):
        real = max(0, min(cut.tokens.stop, config.vocabulary) - cut.tokens.start)
        for p in {id(p): p for p in (cut.tokens.weight, cut.head.weight)}.values():
            p.grad[real:] = 1e3  # rows of no word: whatever stands there
        over = [mesh.get_group("tp"), mesh.get_group("dp")]
        assert norm(gradient_pieces(cut, mesh), over).item() == pytest.approx(wanted[0], rel=1e-10)
    return sum(piece.tensor.numel() for piece in gradient_pieces(cut, mesh))


class _Keep:
    """An optimizer that notes what it could see, and changes nothing."""

    def __init__(self, model, mesh, into):
        self.model, self.mesh, self.into = model, mesh, into

    def step(self):
        axes = [] if self.mesh is None else [self.mesh.get_group(a) for a in ("tp", "dp")]
        self.into.append(norm(gradient_pieces(self.model, self.mesh), axes).item())


@pytest.mark.parametrize(
    ("dp", "tp", "config", "lay"),
    [
        (1, 3, GPT2, {"multiple_of": 8}),
        (1, 3, LLAMA, {"multiple_of": 16, "sequence": True}),
        (1, 4, FEW, {}),
        (2, 2, GPT2, {"sequence": True}),
        (2, 2, LLAMA.changed(kv_heads=1), {"sequence": True}),
    ],
)
def test_every_logical_gradient_counts_once(pool, dp, tp, config, lay):
    held = pool.run(dp * tp, counted_once, config, dp, lay)
    assert max(held) < sum(p.numel() for p in GPT(config).parameters())


def summed(me):
    """Buckets of any size, gradients of any dtype and shape, one that is missing on some ranks."""
    group = dist.group.WORLD
    shapes = [(3, 5), (7,), (2, 2, 2), (1,), (0, 4)]
    for most in (1, 40, 100, 1 << 20):
        ps = [torch.nn.Parameter(made((i, "p"), *s).to(me.device)) for i, s in enumerate(shapes)]
        ps.append(torch.nn.Parameter(made("narrow", 4).to(me.device, torch.bfloat16)))
        want = []
        for i, p in enumerate(ps):
            every = [made((i, rank), *p.shape).to(p) for rank in range(me.world)]
            if i == 1:
                every[0] = torch.zeros_like(p)
            want.append(torch.stack(every).sum(0))
            p.grad = None if i == 1 and me.rank == 0 else every[me.rank].clone()
        sum_gradients(ps, group, most=most)
        for p, total in zip(ps, want, strict=True):
            assert p.grad.shape == p.shape and p.grad.dtype == p.dtype
            torch.testing.assert_close(p.grad, total)
    sizes = [[p.numel() for p in bucket] for bucket in buckets(ps[:3], 20 * 8)]
    return sizes, said(ValueError, sum_gradients, ps, group, most=0)


def test_gradients_meet_whole_in_buckets_of_any_size(pool):
    for sizes, nothing in pool.run(3, summed):
        assert sizes == [[15], [7, 8]]
        assert "must hold at least one byte" in nothing


def refused(me):
    mesh = ranks.mesh(me, dp=1, tp=2)
    cut, dense = cut_model(me, mesh), randomized(GPT(GPT2), "dense").to(me.device)
    rows = own_rows(me, mesh, 0)
    return [
        said(ValueError, step, cut, Momentum(cut), [], mesh),
        said(ValueError, step, dense, Momentum(dense), rows, None, fused=True),
        said(ValueError, groups, cut, -0.1),
    ]


def test_a_step_that_cannot_be_is_refused(pool):
    for found in pool.run(2, refused):
        assert "at least one batch" in found[0]
        assert "head is not sharded" in found[1]
        assert "decay=-0.1" in found[2]


def decaying(me, config):
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    dense = GPT(config)
    named = {id(p): name for name, p in dense.named_parameters()}
    whole = [sorted(named[id(p)] for p in group["params"]) for group in groups(dense, 0.1)]
    cut = cut_model(me, mesh, config, sequence=True)
    named = {id(p): name for name, p in cut.named_parameters()}
    split = groups(cut, 0.1)
    own = [sorted(named[id(p)] for p in group["params"]) for group in split]
    assert [group["weight_decay"] for group in split] == [0.1, 0.0]
    assert own == whole
    assert all(name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "bias"))
               for name in own[1])  # fmt: skip
    assert len(own[0]) + len(own[1]) == len(list(dense.parameters()))
    return own[0]


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_norms_and_biases_do_not_decay(pool, config):
    for own in pool.run(3, decaying, config):
        assert "tokens.weight" in own and ("head.weight" in own) != config.tied
