"""The harnesses of lessons 03 to 05: what a lesson asserts with them can fail."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from course_lib import ranks
from course_lib.classroom.harness import lesson_04, lesson_05
from course_lib.gpt import Config
from course_lib.tensor_parallel import RowParallelLinear


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
