"""Experts on ranks against all in one process: values, gradients, bytes from the routing."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist

from course_lib.extras.axes.expert_parallel import ExpertParallel
from course_lib.extras.axes.experts import Mixture, route
from course_lib.ledger import ledger
from tests.course_lib.tensor_parallel.parts import close, made, randomized, said

H, INNER, W = 6, 10, 8


def mixture(experts, top, device):
    return randomized(Mixture(H, INNER, experts, top).to(device), "experts")


def by_loops(whole, x):
    """The layer as its formula says it: token by token, choice by choice."""
    probabilities = whole.router(x).softmax(-1)
    rows = []
    for token, p in zip(x, probabilities, strict=True):
        best = p.sort(descending=True, stable=True).indices[: whole.top]
        rows.append(sum(p[i] * whole.experts[str(int(i))](token) for i in best))
    return torch.stack(rows)


@pytest.mark.parametrize(("experts", "top"), [(1, 1), (4, 1), (5, 2), (3, 3)])
def test_a_mixture_is_its_formula(experts, top):
    whole = mixture(experts, top, "cpu")
    slow = copy.deepcopy(whole)
    owed = made("owed", 9, H)
    xs = [made("x", 9, H, grad=True) for _ in range(2)]
    outs = [whole(xs[0]), by_loops(slow, xs[1])]
    close("out", *outs)
    for out in outs:
        out.backward(owed)
    close("dx", xs[0].grad, xs[1].grad)
    theirs = dict(slow.named_parameters())
    for name, p in whole.named_parameters():
        if theirs[name].grad is not None:  # an expert without a token
            close(name, p.grad, theirs[name].grad)


def against_whole(me, experts, top, sizes):
    group, rank = dist.group.WORLD, me.rank
    whole = mixture(experts, top, me.device)
    x = made("x", sum(sizes), H, device=me.device, grad=True)
    owed = made("owed", sum(sizes), H, device=me.device)
    cut = ExpertParallel(copy.deepcopy(whole), group)
    held = sum(p.numel() for p in cut.experts.parameters())
    want = whole(x)
    want.backward(owed)
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    mine = x.detach()[own].clone().requires_grad_()
    with ledger() as book:
        got = cut(mine)
        got.backward(owed[own])
        cut.sum_router()
    close("out", got, want[own])
    close("dx", mine.grad, x.grad[own])
    theirs = dict(whole.named_parameters())
    for name, p in cut.named_parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        close(f"grad of {name}", grad, theirs[name].grad)
    # The routing of the whole says who sends how many rows to whom.
    n = me.world
    owner = torch.arange(n).repeat_interleave(torch.tensor(cut.shares))
    chosen = route(whole.router, x.detach(), top).experts.cpu()
    to = [owner[part].flatten().bincount(minlength=n).tolist() for part in chosen.split(sizes)]
    assert cut.sent == to[rank] and cut.received == [row[rank] for row in to]
    other = sum(cut.sent) - cut.sent[rank] + sum(cut.received) - cut.received[rank]
    assert book.bytes("all_to_all", label="") == 2 * other * H * W
    assert book.count("all_to_all", label="") == 4
    return held, sum(cut.received)


CASES = [(1, 3, 2, (5,)), (2, 5, 1, (4, 3)), (3, 4, 2, (5, 0, 3)), (4, 9, 3, (3, 1, 4, 2))]


@pytest.mark.parametrize(("world", "experts", "top", "sizes"), CASES)
def test_experts_on_ranks_are_the_whole_mixture(pool, world, experts, top, sizes):
    found = pool.run(world, against_whole, experts, top, sizes)
    assert [held for held, _ in found] == [
        2 * H * INNER * (experts // world + (r < experts % world)) for r in range(world)
    ]
    assert sum(rows for _, rows in found) == top * sum(sizes)


def refused(me):
    return said(ValueError, ExpertParallel, mixture(2, 1, me.device), dist.group.WORLD)


def test_what_cannot_be_shared_out_is_refused(pool):
    for few in pool.run(3, refused):
        assert few.startswith("2 experts are too few for 3 ranks") and "Take 2" in few
    for top in (0, 3):
        with pytest.raises(ValueError, match=f"top={top} of 2 experts: a token goes to at least"):
            Mixture(H, INNER, 2, top)
