"""What lessons 09 to 11 take from the library instead of spelling it out: counts and refusals."""

from __future__ import annotations

import pytest
import torch

from course_lib import ranks, zero
from course_lib.classroom.harness import lesson_09, lesson_11
from course_lib.gpt import Config

CPU = torch.device("cpu")


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


SMALL = Config.gpt2(vocabulary=23, hidden=6, heads=2, inner=7, layers=2, length=8, tied=False)


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
