"""The harnesses of lessons 03 to 05: what a lesson asserts with them can fail."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from course_lib import ranks
from course_lib.classroom.harness import lesson_04, lesson_05
from course_lib.gpt import Config
from course_lib.tensor_parallel import ColumnParallelLinear, RowParallelLinear


def traced(me):
    group = dist.group.WORLD
    torch.manual_seed(3)
    up, down = nn.Linear(4, 9).double(), nn.Linear(9, 4).double()
    parts = [
        ColumnParallelLinear.from_dense(up, group),
        nn.GELU(),
        RowParallelLinear.from_dense(down, group),
    ]
    x, dy = torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    y, dx, records = lesson_04.trace(parts, x, dy)
    y_dense, dx_dense, none = lesson_04.trace([up, nn.GELU(), down], x, dy)
    ops = [tuple([one.op for one in way] for way in both) for both in records]
    close = torch.allclose(y, y_dense) and torch.allclose(dx, dx_dense)
    span, bar = lesson_04.backward_of(parts[0], x)
    try:  # three tokens, and three outputs on this rank
        lesson_04.backward_of(parts[0], x[:1, :3])
        refused = ""
    except ValueError as error:
        refused = str(error)
    return ops, close, none, (span.op, bar.op, bar.end > bar.start), refused


def test_a_trace_says_which_part_sent_what(pool):
    for ops, close, none, timed, refused in pool.run(3, traced):
        assert ops == [([], ["all_reduce"]), ([], []), (["all_reduce"], [])]
        assert close and not any(way for both in none for way in both)
        assert timed == ("all_reduce", "dW", True)
        assert refused.startswith("2 products of the backward have dW's shape (3, 4)")


def test_the_quickest_backward_is_that_of_all_ranks_together():
    def run(start, end):
        return (SimpleNamespace(start=start, end=end), SimpleNamespace(start=start, end=end - 0.1))

    slow_on_one = [run(0, 1), run(0, 4)]  # run 0 is quick on rank 0 and slow on rank 1
    chosen = lesson_04.quickest([[slow_on_one[0], run(10, 12)], [slow_on_one[1], run(10, 12.5)]])
    assert [pair[0].end for pair in chosen] == [12, 12.5]


def held_against_dense(me):
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    counts = [
        lesson_05.hold_against_dense(config, mesh, me.device)
        for config in (
            Config.gpt2(hidden=12, heads=3, inner=10),
            Config.llama(hidden=12, heads=3, kv_heads=1, inner=7, bias=True),
        )
    ]

    def disturbed(block):  # one bias of the sharded block alone is off
        seen = lesson_05.train(block)
        if isinstance(block.mlp.down, RowParallelLinear):
            seen[1][2]["mlp.down.bias"].add_(1e-6)
        return seen

    try:
        config = Config.gpt2(hidden=12, heads=3, inner=10)
        lesson_05.hold_against_dense(config, mesh, me.device, disturbed)
    except AssertionError as error:
        return counts, str(error)
    return counts, ""


def test_a_block_is_held_to_every_gradient_of_the_dense_one(pool):
    for counts, said in pool.run(3, held_against_dense):
        assert counts == [36, 30]
        assert said.startswith("mlp.down.bias's gradient is off by 1e-06")
