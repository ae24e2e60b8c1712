"""Attention by heads against the dense one: head counts that do not divide, few key/value heads.

Gradients of a key/value head that several ranks hold have to be the dense ones on each of them;
dropout inside heads has to be each rank's own, and the same again when it is recomputed.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import ranks
from course_lib.gpt import Attention, Config
from course_lib.tensor_parallel import shard_attention
from course_lib.tensor_parallel.attention import holders_of
from course_lib.tensor_parallel.randomness import in_step, seed_all
from tests.course_lib.tensor_parallel.parts import (
    fewer,
    group_of,
    held,
    made,
    randomized,
    three_steps,
)

BATCH = (2, 5)  # b, s


def dense_attention(label, heads, kv_heads, size, position, bias, device, dropout=0.0):
    config = Config(
        hidden=heads * size,
        heads=heads,
        kv_heads=kv_heads,
        position=position,
        bias=bias,
        attention_dropout=dropout,
    )
    return randomized(Attention(config).to(device), label)


# heads, kv heads, head size, position, bias
KINDS = {
    1: [(3, 1, 4, "rotary", True)],
    2: [(5, 5, 3, "learned", True), (6, 3, 2, "rotary", False), (3, 1, 4, "rotary", True)],
    3: [(5, 5, 3, "learned", True), (8, 4, 2, "rotary", True), (7, 1, 2, "rotary", True)],
    4: [
        (6, 6, 3, "learned", True),
        (10, 5, 2, "rotary", False),
        (6, 2, 4, "rotary", True),  # two ranks for each kv head, of 2 and 1 query heads
        (5, 1, 3, "learned", True),
    ],
}


def against_dense(me, kinds, members):
    """For every kind: how many numbers are elsewhere, and the messages of a step."""
    group = group_of(me, members)
    if members is not None and me.rank not in members:
        return None
    missing, messages = [], {}
    for kind in kinds:
        dense = dense_attention(kind, *kind, me.device)
        holders = holders_of(*kind[:2], group)
        cut = shard_attention(copy.deepcopy(dense), group, holders=holders)
        where = held(
            dense, lambda twin, holders=holders: shard_attention(twin, group, holders=holders)
        )
        missing.append(fewer(where, dense))
        book = three_steps(kind, dense, cut, where, group, (*BATCH, kind[0] * kind[2]))
        messages[kind] = [(r.op, r.phase, r.ranks, r.elements) for r in book.records]
    return missing, messages


@pytest.mark.parametrize(
    ("world", "members"), [(1, None), (2, None), (3, None), (4, None), (4, (1, 2, 3))]
)
def test_attention_is_the_dense_one_and_sends_one_sum_each_way(pool, world, members):
    n = len(members or range(world))
    found = [one for one in pool.run(world, against_dense, KINDS[n], members) if one is not None]
    assert len(found) == n
    for missing, messages in found:
        assert n == 1 or min(missing) > 0
        for (heads, kv, size, _, bias), sent in messages.items():
            phi = BATCH[0] * BATCH[1] * heads * size
            both = [("all_reduce", "forward", n, phi), ("all_reduce", "backward", n, phi)]
            # Rows of k and v that several ranks hold: the sum of their weights' gradient, and of
            # their biases'.
            copies = max(1, n // kv)
            shared = [2 * size * heads * size] + [2 * size] * bias if copies > 1 else []
            more = [("all_reduce", "backward", copies, elements) for elements in shared]
            assert sorted(sent) == sorted(both + more), (heads, kv)
            assert sent[:2] == both


def own_holders(me):
    """Without `holders`, a group of those that share a kv head is made; also where the ranks have
    been in unequal numbers of groups before, and where such a group was there and has gone."""
    group = dist.group.WORLD
    ranks.new_group(me, [0, 2])
    gone = holders_of(8, 2, group)
    dist.destroy_process_group(gone)
    dense = dense_attention("own", 4, 2, 2, "rotary", True, me.device)
    cut = shard_attention(copy.deepcopy(dense), group)
    ranks_of = dist.get_process_group_ranks(cut.qkv.shared[2])
    none = holders_of(4, 4, group), holders_of(8, 4, group)
    assert holders_of(4, 1, group) is group
    return ranks_of, none, cut.qkv.shared[:2]


def test_the_ranks_that_hold_a_key_value_head_are_neighbours(pool):
    found = pool.run(4, own_holders)
    assert [one[0] for one in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert all(one[1:] == ((None, None), (2, 6)) for one in found)


def heads_masks(me):
    """What each rank's heads drop, read off an attention whose values say so; the shared stream."""
    group = dist.group.WORLD
    heads = 2 * me.world
    attention = dense_attention("masks", heads, heads, 8, "learned", True, me.device, dropout=0.5)
    shard_attention(attention, group)
    shape = (1, 2, 64, 8)
    q, k = (torch.zeros(shape, dtype=torch.float64, device=me.device) for _ in range(2))
    v = torch.eye(64, device=me.device, dtype=torch.float64).expand(1, 2, 64, 64)
    seed_all(11)
    weights = attention.core(q, k, v)  # (1, 2, 64, 64): the attention's weights, dropped or not
    in_step(group)
    shared = F.dropout(torch.ones(4096), 0.5)
    return (weights[0, :, -1] > 0).cpu(), shared


def test_heads_drop_out_each_rank_by_itself_and_the_shared_stream_stays_shared(pool):
    found = pool.run(4, heads_masks)
    masks = torch.cat([mask for mask, _ in found])  # (heads, the 64 that the last query sees)
    kept = masks.double().mean(1)
    assert (kept > 0.2).all() and (kept < 0.8).all()  # 64 tosses of a coin; seeds are fixed
    assert len({tuple(row.tolist()) for row in masks}) == len(masks)
    assert all(torch.equal(shared, found[0][1]) for _, shared in found)


def in_evaluation(me):
    """An attention in evaluation draws nothing, also where it was cut in that state."""
    attention = dense_attention("eval", 4, 4, 2, "learned", True, me.device, dropout=0.5)
    shard_attention(attention.eval(), dist.group.WORLD)
    assert not any(module.training for module in attention.modules())
    before = torch.get_rng_state()
    x = made("x", *BATCH, 8, device=me.device)
    first, second = attention(x), attention(x)
    assert torch.equal(first, second) and torch.equal(before, torch.get_rng_state())
    attention.train()
    assert not torch.equal(attention(x), attention(x))


def test_in_evaluation_nothing_is_drawn(pool):
    pool.run(2, in_evaluation)
