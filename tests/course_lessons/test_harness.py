"""The harnesses of lessons 04, 05, 09 and 11: what a lesson asserts with them can fail."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from course_lessons.lesson_04 import harness as lesson_04
from course_lessons.lesson_05 import harness as lesson_05
from course_lessons.lesson_09 import harness as lesson_09
from course_lessons.lesson_11 import harness as lesson_11
from course_lib import ranks, zero
from course_lib.gpt import Config
from course_lib.tensor_parallel import RowParallelLinear

CPU = torch.device("cpu")
SMALL = Config.gpt2(vocabulary=23, hidden=6, heads=2, inner=7, layers=2, length=8, tied=False)


def test_the_quickest_backward_is_that_of_all_ranks_together():
    def run(start, end):
        return (SimpleNamespace(start=start, end=end), SimpleNamespace(start=start, end=end - 0.1))

    slow_on_one = [run(0, 1), run(0, 4)]  # run 0 is quick on rank 0 and slow on rank 1
    chosen = lesson_04.quickest([[slow_on_one[0], run(10, 12)], [slow_on_one[1], run(10, 12.5)]])
    assert [pair[0].end for pair in chosen] == [12, 12.5]


def disturbed(block):
    """A training in which one bias of the sharded block alone is off."""
    seen = lesson_05.train(block)
    if isinstance(block.mlp.down, RowParallelLinear):
        seen[1][2]["mlp.down.bias"].add_(1e-6)
    return seen


def held_against_dense(me):
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    config = Config.gpt2(hidden=12, heads=3, inner=10)
    with pytest.raises(AssertionError, match=r"^mlp.down.bias's gradient is off by 1e-06"):
        lesson_05.hold_against_dense(config, mesh, me.device, disturbed)
    return True


def test_a_block_is_held_to_every_gradient_of_the_dense_one(pool):
    assert pool.run(3, held_against_dense) == [True] * 3


def half_hidden(me):
    """An engine that holds a tensor which no kind names."""
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    model = lesson_09.small_model(CPU)
    engine = zero.engine(model, torch.optim.AdamW(model.parameters()), stage=1, mesh=mesh)
    engine.backward(engine(torch.ones(2, 40)).square().mean())
    engine.step()
    lesson_09.bytes_of(engine)
    some = next(iter(engine.optimizer.state.values()))
    some["hidden"] = torch.ones(100)
    with pytest.raises(AssertionError, match="bytes, but the kinds sum to"):
        lesson_09.bytes_of(engine)
    return True


def test_what_no_kind_names_is_not_left_out(pool):
    assert pool.run(2, half_hidden) == [True, True]


def differs(me):
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    backward = zero.Engine.backward
    zero.Engine.backward = lambda engine, loss: backward(engine, loss * (1 + 1e-6))
    try:
        with pytest.raises(AssertionError, match="is off by"):
            lesson_11.hold_against_one_process(
                mesh, CPU, SMALL, lambda model: list(model.blocks), 2, prefetch=1
            )
    finally:
        zero.Engine.backward = backward
    return True


def test_a_millionth_of_a_gradient_is_a_difference(pool):
    assert pool.run(2, differs, timeout=60) == [True, True]
