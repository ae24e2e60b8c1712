"""A table that gets more words: the same rows on every layout, and the model of one process."""

from __future__ import annotations

import copy

import pytest
import torch

from course_lib import ranks
from course_lib.gpt import GPT, Config
from course_lib.ledger import ledger
from course_lib.step.losses import loss_sum
from course_lib.tensor_parallel import extents, parallelize, resize

OLD, NEW = 61, 70
SMALL = {"vocabulary": OLD, "length": 8, "hidden": 16, "layers": 1, "heads": 4}
PLANS = [
    (Config.gpt2(**SMALL), {}, {}),  # tied
    (Config.llama(**SMALL, kv_heads=4), {"multiple_of": 16}, {"multiple_of": 16}),
    (Config.gpt2(**SMALL), {"sequence": True}, {"multiple_of": 5}),
]


def grown(config: Config, **how) -> GPT:
    """What one process has."""
    torch.manual_seed(1)
    model = GPT(config).double()
    resize(model, NEW, **how)
    return model


def batch():
    ids = torch.randint(NEW, (3, 9), generator=torch.Generator().manual_seed(2))
    return ids[:, :-1], ids[:, 1:]


def on_ranks(me):
    for config, plan, how in PLANS:
        dense = grown(config)
        torch.manual_seed(1)
        model = parallelize(GPT(config).double(), ranks.mesh(me, dp=1, tp=me.world), **plan)
        group, before = model.tokens.group, model.tokens.weight.numel()
        with ledger() as book:
            resize(model, NEW, **how)
        tables = 1 if config.tied else 2
        gathers = book.count("all_gather")
        assert gathers == (tables if me.world == 1 else tables + 1) and before
        tied = model.head.weight is model.tokens.weight
        assert tied == config.tied and model.config.vocabulary == NEW
        start, stop = model.tokens.start, min(model.tokens.stop, NEW)
        for name in ("tokens", "head"):
            own, want = getattr(model, name).weight, getattr(dense, name).weight
            assert torch.equal(own[: max(0, stop - start)], want[start:stop]), (name, plan)
            assert not own[max(0, stop - start) :].any(), "rows that are no words are not zero"
        loss, want = loss_sum(model, *batch()), loss_sum(dense, *batch())
        loss.backward()
        want.backward()
        assert abs(loss - want) < 1e-10
        for name in ("tokens", "head"):
            own, whole = getattr(model, name).weight.grad, getattr(dense, name).weight.grad
            part = own[: max(0, stop - start)] - whole[start:stop]
            assert part.abs().max().item() < 1e-10 if part.numel() else True, (name, plan)
        (counted,) = extents(model, group)[model.tokens.weight]
        assert counted.stop == max(0, stop - start) * 16


@pytest.mark.parametrize("world", [1, 3])
def test_every_layout_has_the_rows_of_one_process(pool, world):
    pool.run(world, on_ranks)


def test_old_rows_stay_and_new_ones_are_near_their_mean():
    torch.manual_seed(1)
    before = GPT(PLANS[0][0]).double()
    model = grown(PLANS[0][0])
    old, new = model.tokens.weight[:OLD], model.tokens.weight[OLD:]
    assert torch.equal(old, before.tokens.weight)
    mean, spread = old.mean(0), old.std(0)
    assert ((new - mean).abs() < 5e-3 * spread).all() and len(new.unique(dim=0)) == NEW - OLD
    again, other = grown(PLANS[0][0]), grown(PLANS[0][0], seed=7)
    assert torch.equal(again.tokens.weight, model.tokens.weight)
    assert not torch.equal(other.tokens.weight, model.tokens.weight)
    assert model.head.out_features == model.tokens.num_embeddings == NEW


def test_fewer_words_are_refused_while_ids_name_them():
    model = grown(PLANS[0][0])
    kept = copy.deepcopy(model)
    with pytest.raises(ValueError, match=r"smaller than the 70 entries .* used= is not set"):
        resize(model, 65)
    with pytest.raises(ValueError, match=r"68 of them are in use: an id from 65 on"):
        resize(model, 65, used=68)
    assert torch.equal(model.tokens.weight, kept.tokens.weight) and model.config.vocabulary == NEW
    resize(model, 65, used=60)
    assert torch.equal(model.tokens.weight, kept.tokens.weight[:65])


def other_sizes(me):
    torch.manual_seed(1)
    model = parallelize(GPT(PLANS[0][0]), ranks.mesh(me, dp=1, tp=me.world))
    with pytest.raises(ValueError, match=r"rank \d: the ranks request different sizes .*\[71, 0\]"):
        resize(model, 70 + me.rank)
    assert model.tokens.vocabulary == OLD
    with pytest.raises(
        ValueError, match="a vocabulary of 1 entries cannot be sharded over 2 ranks"
    ):
        resize(model, 1, used=1)


def test_ranks_that_do_not_agree_hear_it(pool):
    pool.run(2, other_sizes)
