"""What tensor parallelism sends, by formula, against the ledger of a real forward and backward."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from course_lib import ranks
from course_lib.estimate import tensor_parallel_bytes
from course_lib.estimate.over_tp import check_cut
from course_lib.gpt import GPT, Config
from course_lib.ledger import ledger
from course_lib.step.losses import loss_sum
from course_lib.tensor_parallel import parallelize

GPT2 = Config.gpt2(vocabulary=47, length=12, hidden=24, layers=2, heads=4, inner=34)
LLAMA = Config.llama(vocabulary=53, length=12, hidden=24, layers=2, heads=4, inner=29)
CONFIGS = {
    "gpt2": GPT2,
    "gpt2 run again": GPT2.changed(recompute=True),
    "gpt2 shared, without biases": GPT2.changed(kv_heads=1, bias=False),
    "gpt2 shared, run again": GPT2.changed(kv_heads=1, recompute=True, tied=False, dropout=0.1),
    "llama": LLAMA,  # four heads: at world 3 uneven
    "llama of two": LLAMA.changed(kv_heads=2),
    "llama of one, run again": LLAMA.changed(kv_heads=1, recompute=True),
}
PLANS = [{}, {"sequence": True}, {"sequence": True, "keep": False}]
LENGTH = 7  # which no world divides; at world 4 the last rank has one token


def compare(me, config, *, length=LENGTH, wide=False, **options):
    """What is sent under every plan, beside the formula."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    ids = torch.randint(config.vocabulary, (2, length + 1))
    how = {"rank": me.rank, "width": 8 if wide else 4}
    for plan, fused in product(PLANS, (False, True)):
        torch.manual_seed(3)
        model = parallelize(GPT(config), mesh, **plan, **options)
        model = model.double() if wide else model
        with ledger(mesh) as book:
            loss_sum(model, ids[:, :-1], ids[:, 1:], fused=fused).backward()
        want = tensor_parallel_bytes(config, 2, length, me.world, fused=fused, **plan, **how)
        assert book.bytes() == pytest.approx(want, rel=1e-12), (plan, fused, options)


def over_tp(me, name):
    config = CONFIGS[name]
    if config.kv_heads >= me.world or me.world % config.kv_heads == 0:
        compare(me, config)
    else:
        with pytest.raises(ValueError, match="cannot be shared by"):
            tensor_parallel_bytes(config, 2, LENGTH, me.world)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("world", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_rank_sends_what_was_estimated(pool, world, name):
    pool.run(world, over_tp, name, timeout=120)


def other_widths(me):
    config = GPT2.changed(kv_heads=1, recompute=True)
    compare(me, config, wide=True)
    compare(me, config, multiple_of=8, overlap=False)
    compare(me, config, length=2)  # fewer tokens than ranks


def test_other_widths_paddings_and_short_sequences(pool):
    pool.run(3, other_widths, timeout=120)


def test_what_cannot_be_cut_is_refused():
    for config, length, n, rank, words in (
        (LLAMA.changed(kv_heads=2), 6, 3, 0, "2 key/value heads cannot be shared by 3"),
        (GPT2, 6, 5, 0, "heads"),
        (GPT2.changed(vocabulary=3), 6, 4, 0, "vocabulary of 3"),
        (GPT2, 13, 2, 0, "longer than length=12"),
        (GPT2, 6, 2, 2, "rank=2 is none of the 2"),
    ):
        with pytest.raises(ValueError, match=words):
            tensor_parallel_bytes(config, 2, length, n, rank=rank)
        with pytest.raises(ValueError, match=words):  # by itself too: other estimates ask it
            check_cut(config, length, n, rank)
