"""What a forward keeps, by formula, against the meter: within a percent, dense and cut."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from course_lib import ranks
from course_lib.estimate.activations import kept
from course_lib.gpt import GPT, Config
from course_lib.memory import peak
from course_lib.step.losses import loss_sum
from course_lib.tensor_parallel import parallelize

GPT2 = Config.gpt2(vocabulary=95, length=40, hidden=48, layers=3, heads=4, inner=76)
LLAMA = Config.llama(vocabulary=91, length=40, hidden=48, layers=2, heads=4, kv_heads=2, inner=64)


def measured(model, ids, loss=True):
    with peak() as p:
        out = model(ids).flatten(0, 1)  # without a loss, the logits are what is kept of them
        if loss:
            out = F.cross_entropy(out, torch.zeros(ids.numel(), dtype=torch.long))
    return p.held_after


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("change", [{}, {"dropout": 0.1}, {"recompute": True}], ids=str)
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_what_a_forward_keeps(config, change, dtype):
    config = config.changed(**change)
    torch.manual_seed(0)
    ids = torch.randint(91, (3, 33))
    want = kept(config, 3, 33, width=dtype.itemsize).total
    got = measured(GPT(config).to(dtype), ids)
    assert got == pytest.approx(want, rel=0.01), (got, want, got - want)


UNEVEN = [  # heads that are shared or uneven, a width and a length that no world divides; fused
    (LLAMA.changed(kv_heads=1, inner=65, recompute=False), {}, False),
    (GPT2.changed(kv_heads=1, vocabulary=61), {"sequence": True}, False),
    (GPT2.changed(recompute=True), {"sequence": True, "keep": False}, False),
    (LLAMA.changed(kv_heads=4, inner=65, dropout=0.1), {}, True),
    (GPT2.changed(vocabulary=61), {"sequence": True, "keep": False}, True),
]


def uneven(me):
    for config, plan, fused in UNEVEN:
        torch.manual_seed(0)
        model = parallelize(GPT(config), ranks.mesh(me, dp=1, tp=me.world), **plan)
        ids = torch.randint(60, (3, 35))
        if fused:
            with peak() as p:
                loss = loss_sum(model, ids[:, :-1], ids[:, 1:], fused=True)
            got = p.held_after - loss.nbytes
            del loss
        else:
            got = measured(model, ids, loss=False)
        how = {"tp": me.world, "rank": me.rank, "fused": fused, **plan}
        want = kept(config, 3, 34 if fused else 35, **how).total
        assert got == want, (config.norm, how, got, want, got - want)


@pytest.mark.parametrize("world", [2, 3])
def test_what_every_rank_keeps_of_an_uneven_cut(pool, world):
    pool.run(world, uneven)


def test_attention_dropout_is_no_part_of_it():
    with pytest.raises(ValueError, match="all pairs of tokens"):
        kept(GPT2.changed(attention_dropout=0.1), 3, 33)
