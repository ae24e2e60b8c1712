"""What lessons 09 to 11 take from the library instead of spelling it out: counts and refusals."""

from __future__ import annotations

import pytest
import torch

from course_lib import ranks, zero
from course_lib.classroom.harness import lesson_09, lesson_10, lesson_11
from course_lib.gpt import Config

CPU = torch.device("cpu")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_bytes_a_parameter_follow_the_formula_at_every_world(pool, world):
    for found in pool.run(world, lesson_09.bytes_by_stage):
        for stage in (0, 1):
            states = 12 if stage == 0 else 12 / world
            between, alive = (found[stage][when] for when in (lesson_09.BETWEEN, lesson_09.ALIVE))
            assert sum(between[kind] for kind in lesson_09.STATES) == pytest.approx(4 + states)
            assert between["float32 gradients"] == 0
            assert alive["float32 gradients"] == pytest.approx(states / 3)
            assert 0 < between["step counters"] < 0.02


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
    with pytest.raises(AssertionError, match="bytes, and the kinds together"):
        lesson_09.bytes_of(engine)
    return True


def test_what_no_kind_names_is_not_left_out(pool):
    assert pool.run(2, half_hidden) == [True, True]


def gradients(me, stage):
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    model = lesson_09.small_model(CPU)
    engine = zero.engine(
        model,
        torch.optim.AdamW(model.parameters()),
        stage=stage,
        mesh=mesh,
        accumulate=2,
        bucket_bytes=4000,
        check=False,
    )
    x = torch.ones(2, 40)
    counts, left = lesson_10.count_gradients(engine, [lambda: engine(x).square().mean()] * 2)
    moved = any(engine.optimizer.state.values())
    return counts, left, engine.partition.padded, moved


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("stage", [1, 2])
def test_gradients_are_counted_as_they_come_and_what_is_left(pool, stage, world):
    for counts, left, padded, moved in pool.run(world, gradients, stage):
        assert [len(each) for each in counts] == [4, 4]  # two weights, two biases
        assert left == 4 * padded // (world if stage == 2 else 1)
        assert max(map(max, counts)) >= left
        assert counts[0][0] >= 4 * 60  # the first that comes is a bias of 60, and is counted
        if stage == 2:
            assert counts[0][0] < counts[1][0]  # the shard is there from the start
        assert not moved


SMALL = Config.gpt2(vocabulary=23, hidden=6, heads=2, inner=7, layers=2, length=8, tied=False)


def beside_one_process(me, spoil):
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    backward = zero.Engine.backward
    if spoil:
        zero.Engine.backward = lambda engine, loss: backward(engine, loss * (1 + 1e-6))
    try:
        return lesson_11.hold_against_one_process(
            mesh, CPU, SMALL, lambda model: list(model.blocks), 2, prefetch=1
        )
    finally:
        zero.Engine.backward = backward


@pytest.mark.parametrize("world", [2, 3])
def test_stage_3_is_held_against_one_process(pool, world):
    compared = pool.run(world, beside_one_process, False, timeout=60)
    assert min(compared) >= 30


def differs(me):
    with pytest.raises(AssertionError, match="is off by"):
        beside_one_process(me, True)
    return True


def test_a_millionth_of_a_gradient_is_a_difference(pool):
    assert pool.run(2, differs, timeout=60) == [True, True]


def test_ranks_read_rows_of_their_own():
    same, other = (lesson_11.rows(SMALL, 1, 0, rank, CPU) for rank in (0, 1))
    assert not torch.equal(same, other)
    assert torch.equal(same, lesson_11.rows(SMALL, 1, 0, 0, CPU))
