"""The checks of lesson 05: what they rest on is so.

Every answer here runs on the judge's real ranks; `answers/` has right and wrong ones.
"""

from __future__ import annotations

import gc
import sys

import pytest
import torch

from course_classroom.judge import frame
from course_classroom.judge.desk import Desk
from course_lessons.lesson_05 import dropout_streams as streams
from course_lessons.lesson_05 import kv_heads_on_ranks as kv
from course_lessons.lesson_05 import recompute_dropout as recompute
from course_lessons.lesson_05 import shard_qkv as qkv
from course_lib.memory.lifetimes import StorageWatch
from course_lib.tensor_parallel.qkv_layout import shares
from tests.course_lessons.answers.lesson_05_kv import WRONG_PLAN
from tests.course_lessons.answers.lesson_05_streams import one


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source})


def test_the_rows_wanted_are_those_of_attention_by_heads():
    """An oracle of its own: a head computed from its rows alone is that head of all of them."""
    made = torch.Generator().manual_seed(3)
    case = qkv.Case("Llama", 6, 3, 2, 2)
    x = torch.randn(4, case.hidden, generator=made, dtype=torch.float64)
    weight = torch.randn(case.rows, case.hidden, generator=made, dtype=torch.float64)

    def attend(rows, heads, kv):
        q, k, v = (x @ weight[rows].t()).split([heads * 2, kv * 2, kv * 2], 1)
        q, k, v = (part.view(4, -1, 2).transpose(0, 1)[None] for part in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)[0]

    whole = attend(list(range(case.rows)), 6, 3)
    parts = [attend(qkv.right(case, r), h, kv) for r, h, kv in ((0, 4, 2), (1, 2, 1))]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_a_plan_carried_out_gives_the_gradient_of_one_process_only_with_the_right_sum():
    made = kv.right((6, 2, 4))
    assert [share.q for share in shares(6, 2, 4)] == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert max(kv.played(made, 6, 2, 5)) < 1e-10
    alone = [(q, heads, [rank]) for rank, (q, heads, _) in enumerate(made)]
    assert min(kv.played(alone, 6, 2, 5)) > 0.05


def test_a_finding_shows_what_the_plan_did_to_the_gradient(desk):
    verdict = judged(desk, "kv_heads_on_ranks", WRONG_PLAN["no sum"][0])
    assert "on 3 real ranks" in verdict.text
    assert "% of its size" in verdict.text
    verdict = judged(desk, "kv_heads_on_ranks", WRONG_PLAN["all ranks sum"][0])
    assert "ranks in one process" in verdict.text


def test_the_statistical_test_tells_equal_from_independent():
    made = torch.Generator().manual_seed(2)
    masks = torch.rand(200, streams.ELEMENTS, generator=made) > 0.5
    assert streams._related(masks) is None  # 19,900 pairs, and none of them an accident
    masks[7] = masks[3]
    assert streams._related(masks) == (3, 7)
    masks[7] = ~masks[3]  # nor is the opposite of a mask independent
    assert streams._related(masks) == (3, 7)


HASHED = "(seed * 1009 + dp_rank) * 1013"


@pytest.mark.skipif(not sys.flags.hash_randomization, reason="PYTHONHASHSEED fixes every hash")
@pytest.mark.parametrize("text", ['"x"', 'f"replica {dp_rank}"', "str(seed)"])
def test_a_seed_from_the_hash_of_a_name_is_refused_by_its_name(desk, text):
    """Forked ranks share what makes a hash; the last rank of a check does not."""
    source = one((HASHED, f"hash({text}) % 1000 + {HASHED}"))
    verdict = judged(desk, "dropout_streams", source)
    assert (verdict.outcome, verdict.name) == ("wrong", "hash of a string"), str(verdict)
    assert "zlib.crc32" in verdict.text


def test_what_a_block_keeps_is_waited_for_at_rest():
    """Twenty collections a block were five seconds at work on a busy machine: no verdict."""
    x = torch.ones(4, requires_grad=True)
    with StorageWatch() as memory:
        out = (x * 2).exp() * 3  # exp and the product keep what they need
    begun: list[str] = []
    gc.callbacks.append(lambda phase, info: begun.append(phase) if info["generation"] == 2 else 0)
    try:
        assert recompute._kept(memory, x, out) > 0
    finally:
        gc.callbacks.pop()
    assert begun.count("start") == 1
