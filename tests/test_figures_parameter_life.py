"""The life of a stage-3 parameter is drawn as the engine leads it."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from course_lib import ranks, zero
from course_lib.figures import parameter_life
from course_lib.figures.parameter_life import FULL, PARTIAL, SHARDED, STATES
from tests.test_figures_statement import pixels
from tests.test_figures_zero_3 import WIDTH, Stack


def lived(me) -> list[str]:
    """What becomes of a middle unit in a step, in order."""
    torch.manual_seed(3)
    model = Stack().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    engine = zero.engine(model, optimizer, stage=3, mesh=mesh, prefetch=0, persist=0)
    unit, gradients, life = engine.shards.units[1], engine.gradients, []
    free, gather, send = unit.free, unit.gather, gradients.send

    def noting_free():
        if unit.whole:
            life.append("free")
        free()

    def noting_gather():
        if not unit.whole:
            life.append("all-gather")
        gather()

    def noting_send(i, buffer):
        handle = send(i, buffer)  # frees the unit, then begins the message
        if gradients.shards.units[-1 - i] is unit:
            life.append("reduce-scatter")
        return handle

    unit.free, unit.gather, gradients.send = noting_free, noting_gather, noting_send
    engine.backward(engine(torch.ones(2, WIDTH, dtype=torch.float64)).square().sum())
    engine.step()
    return [*life, "update"]


def test_a_unit_of_the_engine_lives_so(pool):
    for life in pool.run(2, lived):
        assert life == [state.then for state in STATES if state.then]


def test_memory_is_the_shard_and_what_is_gathered_and_the_gradient():
    by_state = [sum(state.memory(4)) for state in STATES]
    quarter = Fraction(1, 4)
    assert by_state == [quarter, 1 + quarter, quarter, 2 + quarter, 1 + quarter, 2 * quarter,
                        quarter]  # fmt: skip


def test_an_operation_leads_from_each_state_to_the_next():
    for state, after in pairwise(STATES):
        if state.then == "all-gather":
            assert (state.parameter, after.parameter) == (SHARDED, FULL)
        elif state.then == "free":
            assert (state.parameter, after.parameter) == (FULL, SHARDED)
        elif state.then == "reduce-scatter":
            assert (state.gradient, after.gradient) == (PARTIAL, SHARDED)


def test_the_words_tell_it_in_order():
    words = parameter_life(2).alt
    assert "forward: parameter full, memory 1/2 + 1; then free" in words
    assert "backward: parameter full, gradient partial sum, memory 1/2 + 1 + 1; then free" in words
    assert words.index("then reduce-scatter") < words.index("then update")


@pytest.mark.parametrize("n", [2, 4, 6])
def test_the_picture_is_small_and_cuts_nothing_off(n: int):
    picture = parameter_life(n)
    assert len(picture.png) < 200_000
    image = pixels(picture)
    width, height = image.size
    assert all(image.getpixel((x, y)) == (255,) * 3 for x in range(width) for y in (0, height - 1))
    assert all(image.getpixel((x, y)) == (255,) * 3 for y in range(height) for x in (0, width - 1))


def test_one_rank_shards_nothing():
    with pytest.raises(ValueError, match="on one rank nothing is sharded"):
        parameter_life(1)
