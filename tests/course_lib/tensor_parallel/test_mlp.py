"""The MLP over ranks against the dense one: numbers, gradients, steps, and what it may send.

One all-reduce forward and one backward, whatever bends the numbers in between; inner widths that
do not divide, and one that leaves the last rank nothing.
"""

from __future__ import annotations

import copy

import pytest
import torch.distributed as dist

from course_lib.gpt import MLP, Config
from course_lib.tensor_parallel import shard_mlp
from tests.course_lib.tensor_parallel.parts import (
    WORLDS,
    fewer,
    group_of,
    held,
    randomized,
    three_steps,
)

H, BATCH = 6, (2, 5)


def dense_mlp(label, activation, inner, bias, device):
    config = Config(hidden=H, heads=2, inner=inner, activation=activation, bias=bias)
    return randomized(MLP(config).to(device), label)


KINDS = [
    ("gelu", 7, True),
    ("gelu_tanh", 11, True),
    ("swiglu", 7, True),
    ("swiglu", 10, False),
    ("gelu_tanh", 9, False),  # on four ranks 3, 3, 3 and nothing
    ("swiglu", 5, True),  # on four ranks 2, 2, 1 and nothing
]


def against_dense(me, members):
    """For every kind: how many numbers are elsewhere, and the messages of a step."""
    group = group_of(me, members)
    if members is not None and me.rank not in members:
        return None
    missing, messages = [], []
    for kind in KINDS:
        dense = dense_mlp(kind, *kind, me.device)
        cut = shard_mlp(copy.deepcopy(dense), group)
        where = held(dense, lambda twin: shard_mlp(twin, group))
        missing.append(fewer(where, dense))
        book = three_steps(kind, dense, cut, where, group, (*BATCH, H))
        messages.append([(r.op, r.axis, r.phase, r.elements) for r in book.records])
    return missing, messages


@pytest.mark.parametrize(("world", "members"), [*((w, None) for w in WORLDS), (4, (0, 2, 3))])
def test_the_mlp_is_the_dense_one_and_sends_one_sum_each_way(pool, world, members):
    phi = BATCH[0] * BATCH[1] * H
    one_each = [("all_reduce", "tp", "forward", phi), ("all_reduce", "tp", "backward", phi)]
    found = [one for one in pool.run(world, against_dense, members) if one is not None]
    assert len(found) == len(members or range(world))
    for missing, messages in found:
        assert messages == [one_each] * len(KINDS)
        assert min(missing) > 0 or world == 1


def gate_beside_up(me):
    """Which rows of gate, and which of up, a rank holds; and the columns of down."""
    dense = dense_mlp("rows", "swiglu", 7, True, me.device)
    where = held(dense, lambda twin: shard_mlp(twin, dist.group.WORLD))
    rows = where["gate_up.bias"]
    down = where["down.weight"][0]  # indices of the first row: the columns
    return rows[rows < 7].tolist(), (rows[rows >= 7] - 7).tolist(), down.tolist()


@pytest.mark.parametrize("world", [2, 3])
def test_a_column_of_up_lies_beside_its_own_gate(pool, world):
    found = pool.run(world, gate_beside_up)
    assert all(gate == up == down for gate, up, down in found)
    assert [row for gate, *_ in found for row in gate] == list(range(7))
