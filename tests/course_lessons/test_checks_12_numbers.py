"""Questions with numbers of lessons 12 and 15: right ones are right, misreadings are named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from course_classroom.judge.thought import close
from course_lessons.lesson_12 import eighteen, hides
from course_lessons.lesson_15 import changes_sides as sides
from course_lib.estimate import deepspeed
from tests.course_lessons import test_checks_15_numbers as lesson_15

ROOT = Path(__file__).resolve().parents[2]


def estimated() -> dict[str, float]:
    """The table's numbers from the estimator itself."""

    def of(**how) -> tuple[float, float]:
        cpu, gpu = deepspeed.stage_3(6 * 10**9, 3 * 10**8, 4, 2, **how)
        return cpu / 1e9, gpu / 1e9

    nothing = {"offload_optimizer": False}
    states = {"offload_optimizer": True}
    both = {"offload_optimizer": True, "offload_param": True}
    return {
        "bytes, all states": 18,
        "bytes, an update": 16,
        "GPU, nothing away": of(**nothing)[1],
        "GPU, states away": of(**states)[1],
        "GPU, both away": of(**both)[1],
        "node, both away": of(**both)[0],
        "node, states away": of(**states)[0],
        "node, both away, built whole": of(**both, zero_init=False)[0],
        "node, nothing away, built whole": of(**nothing, zero_init=False)[0],
        "node, nothing away, sharded while built": of(**nothing)[0],
    }


def timed() -> dict[str, float]:
    """Each time by its own words; the counts tried out one by one."""
    numbers = 6e9 / 8  # of a rank

    def down(tokens: int) -> bool:
        return 2 * numbers / 12e9 <= 4 * 6e9 * tokens / 100e12

    def small(k: int) -> bool:
        update, micro = 12 * numbers / 2e9, 6 * 6e9 * 4096 / 100e12
        return update <= 0.1 * (update + k * micro)

    return {
        "down": 2 * numbers / 12e9,
        "backward": 4 * 6e9 * 4096 / 100e12,
        "tokens": next(t for t in range(1, 10_000) if down(t)),
        "up": 2 * numbers / 12e9,
        "read": 12 * numbers / 2e9,
        "update": max(12 * numbers / 2e9, 12 * numbers / 2e9),
        "micro-batches": next(k for k in range(1, 1000) if small(k)),
        "window": 3 * 12 * 50e6 / 1e9,
    }


RIGHT = {"eighteen": estimated(), "hides": timed(), "changes_sides": lesson_15.RIGHT}
IDEAS = {"eighteen": eighteen.MISTAKES, "hides": hides.MISTAKES, "changes_sides": sides.mistakes()}


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_numbers_are_right(alone, name):
    verdict = alone.check(name, {}, {name: RIGHT[name]})
    assert verdict.outcome == "right", str(verdict)
    assert verdict.points == 3 and not alone.judge.running


MISREAD = {
    "eighteen": {
        "a part of the update": {"bytes, an update": 12, "bytes, all states": 14},
        "a gradient in 16 bits": {"bytes, an update": 14, "bytes, all states": 16},
        "both gradients": {"bytes, all states": 20},
        "a layer without its gradient": {"GPU, both away": 0.6},
        "the layer forgotten": {"GPU, both away": 0.0},
        "not sharded": {"GPU, nothing away": 109.2},
        "sharded over one node": {"GPU, nothing away": 28.2},
        "not divided by nodes": {"node, states away": 144.0},
        "a GPU's share": {"node, states away": 18.0},
        "no reserve": {"node, states away": 48.0},
        "built once": {"node, nothing away, built whole": 36.0},
        "built on all nodes": {"node, nothing away, built whole": 288.0},
        "built in 16 bits": {"node, nothing away, built whole": 72.0},
        "counts added": {"node, both away, built whole": 225.0},
        "built and kept": {"node, both away": 88.2, "node, states away": 79.2},
        "building forgotten": {"node, both away, built whole": 81.0},
        "built with its states": {"node, nothing away, built whole": 648.0},
        "only the moments": {"bytes, an update": 8, "bytes, all states": 10},
        "the parameters go too": {"GPU, states away": 1.2, "node, states away": 81.0},
        "the gradient stays": {"GPU, states away": 5.7, "node, states away": 54.0},
        "parameters forgotten": {"node, both away": 72.0},
        "the layer is sharded": {"GPU, both away": 0.15},
        "GiB": {"node, both away": 81e9 / 2**30},
        "only masters and moments": {"bytes, all states": 12},
        "parameter counted too": {"bytes, an update": 18},
        "offloaded bytes counted": {"GPU, states away": 13.2},
        "sharded only over nodes": {"GPU, nothing away": 55.2},
        "a reserve on the GPU": {"GPU, both away": 1.8},
        "nothing offloaded": {"GPU, states away": 14.7},
        "the parameters stay": {"GPU, both away": 2.7},
        "a layer with its states": {"GPU, both away": 5.4},
        "nothing is built": {"node, nothing away, sharded while built": 0.0},
        "full model built": {"node, nothing away, sharded while built": 144.0},
        "a share of the model": {"node, nothing away, sharded while built": 18.0},
        "one process builds": {"node, both away, built whole": 72.0},
        "states on the host": {"node, nothing away, built whole": 81.0},
    },
    "hides": {
        "not sharded": {"down": 1.0, "up": 1.0},
        "in float32": {"down": 0.25, "up": 0.25},
        "states on the bus": {"down": 0.75, "up": 0.75},
        "the forward's operations": {"backward": 0.49152},
        "forward and backward": {"backward": 1.47456},
        "only the backward": {"micro-batches": 42},
        "only the moments": {"read": 3.0, "update": 3.0},
        "with the gradient": {"read": 6.0, "update": 6.0},
        "one after the other": {"update": 9.0},
        "a tenth of the computing": {"micro-batches": 31},
        "one set": {"window": 0.6},
        "two sets": {"window": 1.2},
        "rounded down": {"micro-batches": 27},
        "computing sharded": {"backward": 0.12288},
        "one of three": {"read": 1.5, "update": 1.5},
        "16-bit parameters too": {"read": 5.25, "update": 5.25},
        "all eighteen": {"read": 6.75, "update": 6.75},
        "half as much": {"down": 0.0625, "up": 0.0625},
        "divided by N twice": {"down": 1 / 64, "tokens": 66},
        "not rounded": {"micro-batches": 27.466},
        "as long as the update": {"micro-batches": 4},
        "bus time added": {"update": 4.625},
        "three in a row": {"update": 13.5},
        "with both ends": {"update": 4.8},
        "reading and writing": {"read": 9.0},
        "the tokens of all ranks": {"backward": 7.86432},
        "copy up included": {"micro-batches": 29},
        "all of a rank's states": {"window": 9.0},
        "bucket sharded": {"window": 0.225},
        "all ranks": {"window": 14.4},
        "GiB": {"window": 1.676},
        "disk bandwidth used": {"down": 0.75, "up": 0.75},
        "bus bandwidth used": {"read": 0.75, "update": 0.75},
    },
}
MISREAD["changes_sides"] = lesson_15.MISREAD
CASES = [(name, idea) for name, ideas in MISREAD.items() for idea in ideas]


@pytest.mark.parametrize(("name", "idea"), CASES)
def test_a_misreading_is_named(alone, name, idea):
    given = {**RIGHT[name], **MISREAD[name][idea]}
    verdict = alone.check(name, {}, {name: given})
    said = {m.name for m in IDEAS[name] for k in MISREAD[name][idea]
            if k in m.values and close(m.values[k], given[k])}  # fmt: skip
    assert (verdict.outcome, verdict.points) == ("wrong", 0) and idea in said, str(verdict)
    assert verdict.name in said, str(verdict)  # two ideas may lead to one number
    off = alone.check(name, {}, {name: {**RIGHT[name], next(iter(given)): 123.0}})
    assert (off.outcome, off.name) == ("wrong", "wrong number"), str(off)


@pytest.mark.parametrize("name", ["eighteen", "hides"])
def test_every_idea_is_tried_and_none_is_the_right_number(name):
    assert {m.name for m in IDEAS[name]} == set(MISREAD[name])
    for mistake in IDEAS[name]:
        for field, value in mistake.values.items():
            assert not close(value, RIGHT[name][field]), (mistake.name, field)
            assert math.isfinite(value)
