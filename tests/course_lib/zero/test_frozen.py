"""Stage 3 where weights are frozen: adapters beside them, whole blocks, a head. Right, and cut.

A frozen weight has no gradient that tells when its backward is over: freed too early the backward
meets nothing, freed too late the rank holds the whole model.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lessons.lesson_11.memory_line import whole_units
from tests.course_lib.zero.parts import close, made, match, over_dp, randomized

IN, WIDE, OUT, BLOCKS = 5, 24, 3, 6


class Given:
    """What hides its tensor from those who look at a call."""

    def __init__(self, x):
        self.x = x


class Adapted(nn.Module):
    """A frozen product, which reads its weight last of all, and an adapter beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDE, WIDE).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDE, 3, bias=False), nn.Linear(3, WIDE, bias=False)

    def forward(self, x):
        x = x.x if isinstance(x, Given) else x
        return x + torch.tanh(self.base(x)) + self.up(self.down(x))


class Net(nn.Module):
    """`how` the blocks are called."""

    def __init__(self, frozen: str, how: str):
        super().__init__()
        self.how = how
        self.first = nn.Linear(IN, WIDE)
        self.blocks = nn.ModuleList(Adapted() for _ in range(BLOCKS))
        self.last = nn.Linear(WIDE, OUT)
        for i, block in enumerate(self.blocks):
            block.requires_grad_(block.down.weight.requires_grad and not self.cold(frozen, i))
            block.base.requires_grad_(False)
        self.first.requires_grad_(frozen not in ("first", "all but the last block"))
        self.last.requires_grad_(frozen != "all but the last block")

    @staticmethod
    def cold(frozen: str, i: int) -> bool:
        some = {"some blocks": i in (1, 2, 4), "all but the last block": i < BLOCKS - 1}
        return some.get(frozen, False)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            if self.how == "by name":
                x = block(x=x)
            elif self.how == "hidden":
                x = block(Given(x))
            elif self.how == "recomputed":
                x = checkpoint(block, x, use_reentrant=False)
            elif self.how == "twice":
                x = block(x) + block(torch.sin(x))
            elif self.how == "again":
                x = block(block(x))
            elif self.how == "in place":
                x = block(x).mul_(1.5)
            else:
                x = block(x)
        return self.last(x)


def trained(me, frozen, how, options=None):
    options = {"prefetch": 0, **(options or {})}
    k = options.get("accumulate", 1)
    model, dense = (randomized(Net(frozen, how), "net").double() for _ in range(2))

    def adamw(one):
        return torch.optim.AdamW([p for p in one.parameters() if p.requires_grad], lr=0.02)

    engine = over_dp(me, model, adamw(model), 3, **options)
    plain = adamw(dense)
    label = f"{frozen}, {how}"
    for step in range(3):
        plain.zero_grad()
        with whole_units(engine) as moments:
            for micro in range(k):
                rows = [made((step, micro, r), 4, IN).double() for r in range(me.world)]
                losses = [dense(x).square().mean() for x in rows]
                (sum(losses) / (me.world * k)).backward()
                loss = engine(rows[me.rank]).square().mean()
                close(f"{label}: loss", loss.detach(), losses[me.rank].detach(), 1e-10)
                engine.backward(loss)
                assert not any(unit.whole for unit in engine.shards.units)
                engine.step()
        plain.step()
        match(label, engine, dense)
    most = max(moment.nbytes for moment in moments)
    engine.close()
    return most, max(unit.nbytes for unit in engine.shards.units)


FROZEN = ("adapters", "some blocks", "first", "all but the last block")


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("frozen", "how"),
    [(frozen, "plain") for frozen in FROZEN]
    + [("adapters", how) for how in ("by name", "recomputed", "again", "in place")]
    + [("some blocks", how) for how in ("recomputed", "again")],
)
def test_frozen_weights_come_and_go_like_others(pool, world, frozen, how):
    """As one process has it; and at no time more than one unit is whole."""
    for most, unit in pool.run(world, trained, frozen, how):
        assert most == unit


@pytest.mark.parametrize("how", ["twice", "hidden"])
@pytest.mark.parametrize("frozen", ["adapters", "some blocks"])
def test_where_the_end_of_a_backward_is_not_to_be_seen_it_is_right(pool, frozen, how):
    """Two branches through one block, and inputs that nobody sees: whole longer, and right."""
    pool.run(2, trained, frozen, how)


@pytest.mark.parametrize("options", [{"prefetch": 2}, {"keep": 1 << 40}, {"accumulate": 2}])
def test_frozen_weights_with_the_other_knobs(pool, options):
    for frozen in ("adapters", "some blocks"):
        pool.run(2, trained, frozen, "plain", options)


def of_transformers(me):
    """GPT-2 as it is trained by default, with a cache that no one reads; attention is frozen."""
    import transformers

    sizes = {"vocab_size": 61, "n_positions": 16, "n_embd": 24, "n_layer": 4, "n_head": 2}
    config = transformers.GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    models = [transformers.GPT2LMHeadModel(config).double() for _ in range(2)]
    for one in models:
        randomized(one, "gpt2")
        for name, p in one.named_parameters():
            p.requires_grad_("mlp" in name or "ln_" in name)
    model, dense = models
    engine, plain = (
        torch.optim.AdamW([p for p in one.parameters() if p.requires_grad], lr=0.01)
        for one in models
    )
    engine = over_dp(me, model, engine, 3, prefetch=0)
    for step in range(2):
        data = [torch.Generator().manual_seed(10 * step + r) for r in range(me.world)]
        ids = [torch.randint(61, (2, 9), generator=one) for one in data]
        plain.zero_grad()
        losses = [dense(one, labels=one).loss for one in ids]
        (sum(losses) / me.world).backward()
        plain.step()
        with whole_units(engine) as moments:
            loss = engine(ids[me.rank], labels=ids[me.rank]).loss
            engine.backward(loss)
            engine.step()
        close("loss", loss.detach(), losses[me.rank].detach(), 1e-10)
    blocks = [unit.nbytes for unit in engine.shards.units if ".h." in f".{unit.name}."]
    table = next(unit.nbytes for unit in engine.shards.units if "wte" in unit.name)
    return max(moment.nbytes for moment in moments), max(blocks), table


def test_a_model_of_transformers_with_its_cache(pool):
    pytest.importorskip("transformers")
    for most, block, table in pool.run(2, of_transformers, timeout=90):
        assert most <= block + table
