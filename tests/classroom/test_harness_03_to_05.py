"""The harnesses of lessons 03 to 05: what a lesson asserts with them can fail."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import ranks
from course_lib.classroom.harness import lesson_03, lesson_04, lesson_05
from course_lib.gpt import Config
from course_lib.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from course_lib.tensor_parallel.conjugates import copy, reduce

SIZES = [2, 5, 4]


def three_spaces(me):
    spaces = lesson_03.Spaces(dist.group.WORLD, SIZES, 3)
    a, b = ({s: spaces.vector(s, k) for s in ("replicated", "partial", "sharded")} for k in (7, 8))
    inner = {s: spaces.inner(a[s], b[s], s).item() for s in a}
    least = {op: spaces.least(op) for op in ("nothing", "all_reduce", "all_gather")}
    return a, b, inner, least, [spaces.equal(a["replicated"]), spaces.equal(a["partial"])]


def test_a_replicated_vector_counts_once_and_the_parts_of_the_others_add_up(pool):
    reports = pool.run(3, three_spaces)
    a, b = ([report[k] for report in reports] for k in (0, 1))
    everything = torch.cat([one["sharded"] for one in a])
    assert torch.equal(everything, a[0]["replicated"])
    assert [len(one["sharded"]) for one in a] == SIZES
    assert not torch.equal(a[0]["partial"], a[1]["partial"])
    dots = {s: [(p[s] * q[s]).sum().item() for p, q in zip(a, b, strict=True)] for s in a[0]}
    for rank, (_, _, inner, least, equal) in enumerate(reports):
        assert inner["replicated"] == pytest.approx(dots["replicated"][0])
        for space in ("partial", "sharded"):
            assert inner[space] == pytest.approx(sum(dots[space]))
        assert equal == [True, False]
        assert least == {
            "nothing": 0,
            "all_reduce": 4 * 11 * 3 * 8 / 3,
            "all_gather": 2 * SIZES[rank] * 3 * 8,
        }


def step_by_step(me):
    group = dist.group.WORLD
    program = {
        "f": lambda x: copy(x, group),
        "square": torch.square,
        "g": lambda p: reduce(p, group),
    }
    x = lesson_03.normal(4, seed=1)
    dx, sent = lesson_03.there_and_back(program, x, lambda y: y)
    _, _, forward, backward = lesson_03.both_ways(program["f"], x, x)
    names = [(name, [s.op for s in there], [s.op for s in back]) for name, there, back in sent]
    return x, dx, names, forward.count(), backward.count("all_reduce")


def test_a_program_goes_back_in_reverse_order_and_each_step_has_its_own_spans(pool):
    for x, dx, names, forward, backward in pool.run(3, step_by_step):
        torch.testing.assert_close(dx, 3 * 2 * x * 3 * x**2)  # L = (3 x²)² / 2
        assert names == [("f", [], ["all_reduce"]), ("square", [], []), ("g", ["all_reduce"], [])]
        assert (forward, backward) == (0, 1)


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
