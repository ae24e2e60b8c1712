"""A parameter that a backward brings no gradient for holds nothing up: buckets leave, units go.

The loss's graph says which gradients will come, on each rank its own.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from course_lessons.lesson_11.memory_line import whole_units
from course_lib.ledger import ledger
from tests.course_lib.zero.parts import close, made, match, over_dp, randomized

IN, WIDE, BLOCKS = 5, 24, 6


class Block(nn.Module):
    """`aside` is used or not; `quiet` is read, and takes no gradient though it could."""

    def __init__(self):
        super().__init__()
        self.main, self.aside = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 2)
        self.quiet = nn.Linear(WIDE, WIDE, bias=False)

    def forward(self, x, kind=""):
        if kind == "aside":
            x = x + self.aside(x).sum(1, keepdim=True)
        if kind == "quiet":
            x = x + torch.tanh(x @ self.quiet.weight.detach())
        return x + torch.tanh(self.main(x))


class Net(nn.Module):
    """`kinds[i]` is how block i is called. Nobody calls the two layers at the end."""

    def __init__(self, lonely=False):
        super().__init__()
        self.first = nn.Linear(IN, WIDE)
        blocks = (nn.Linear(WIDE, WIDE) if lonely else Block() for _ in range(BLOCKS))
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Linear(WIDE, 3)
        self.never, self.nor_this = nn.Linear(WIDE, 7), nn.Linear(7, 3)

    def forward(self, x, kinds=()):
        x = self.first(x)
        for i, block in enumerate(self.blocks):
            x = block(x, kinds[i]) if kinds else block(x)
        return self.last(x)


def engine_for(me, model, stage):
    adamw = torch.optim.AdamW(model.parameters(), lr=0.02)
    options = {"prefetch": 0} if stage == 3 else {"bucket_bytes": 3000}
    return over_dp(me, model, adamw, stage, **options)


def under_way(me, stage):
    """How many buckets there are, how many had left when the last gradients came; at stage 3 also
    the bytes that were whole at each moment, and of each unit."""
    model = randomized(Net(lonely=True), "net").double()
    engine = engine_for(me, model, stage)
    left, whole = [], []
    for _ in range(2):
        watched = whole_units(engine) if stage == 3 else contextlib.nullcontext([])
        with ledger() as book, watched as moments:
            hook = model.first.weight.register_post_accumulate_grad_hook(
                lambda p: left.append(book.count("reduce_scatter"))
            )
            engine.backward(engine(made("x", 4, IN).double()).square().mean())
            hook.remove()
            engine.step()
        whole += [moment.nbytes for moment in moments]
    units = [unit.nbytes for unit in getattr(engine.shards, "units", [])]
    return len(engine.partition.buckets), left, whole, units


@pytest.mark.parametrize("stage", [2, 3])
def test_buckets_leave_under_the_backward_all_the_same(pool, stage):
    """From the first backward on, though two layers at the end never get a gradient."""
    for buckets, left, whole, units in pool.run(2, under_way, stage):
        assert buckets > 7 and min(left) >= buckets - 2, (buckets, left)
        assert stage < 3 or max(whole) == max(units)


def trained(me, stage, kinds_of):
    """Train beside one process; at stage 3 nothing is left whole after a step."""
    model, dense = (randomized(Net(), "net").double() for _ in range(2))
    engine = engine_for(me, model, stage)
    plain = torch.optim.AdamW(dense.parameters(), lr=0.02)
    for step in range(4):
        plain.zero_grad()
        rows = [made((step, r), 4, IN).double() for r in range(me.world)]
        kinds = [[kinds_of(step, r, i) for i in range(BLOCKS)] for r in range(me.world)]
        losses = [dense(x, k).square().mean() for x, k in zip(rows, kinds, strict=True)]
        (sum(losses) / me.world).backward()
        plain.step()
        with whole_units(engine) if stage == 3 else ledger() as moments:
            loss = engine(rows[me.rank], kinds[me.rank]).square().mean()
            close("loss", loss.detach(), losses[me.rank].detach(), 1e-10)
            engine.backward(loss)
            engine.step()
        assert stage < 3 or moments[-1].nbytes == 0
        match(f"step {step}", engine, dense)


def never_aside(step, rank, i):
    return ""


def aside_in_turn(step, rank, i):  # in each step in another block, on all ranks
    return "aside" if step == i else ""


def quiet_in_one(step, rank, i):
    return "quiet" if i == 2 else "aside"


def aside_on_one_rank(step, rank, i):
    return "aside" if rank == step % 2 else ""


KINDS = (never_aside, aside_in_turn, quiet_in_one, aside_on_one_rank)


@pytest.mark.parametrize(("stage", "world"), [(2, 2), (3, 2), (3, 3)])
@pytest.mark.parametrize("kinds_of", KINDS, ids=lambda one: one.__name__)
def test_it_is_one_process_whatever_has_no_gradient(pool, stage, world, kinds_of):
    pool.run(world, trained, stage, kinds_of)
