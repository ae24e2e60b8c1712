"""Lesson 12's questions with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_12 import eighteen, hides
from course_lib.classroom.checks.thought import close
from course_lib.estimate import deepspeed

ROOT = Path(__file__).resolve().parent.parent


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
        "node, nothing away, cut while built": of(**nothing)[0],
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


RIGHT = {"eighteen": estimated(), "hides": timed()}
PARTS = {"eighteen": eighteen, "hides": hides}


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_numbers_are_right(desk, name):
    verdict = desk.check(name, {}, {name: RIGHT[name]})
    assert verdict.outcome == "right", str(verdict)
    assert verdict.points == 3 and not desk.judge.running


MISREAD = {
    "eighteen": {
        "a part of the update": {"bytes, an update": 12, "bytes, all states": 14},
        "a gradient in 16 bits": {"bytes, an update": 14, "bytes, all states": 16},
        "both gradients": {"bytes, all states": 20},
        "a layer without its gradient": {"GPU, both away": 0.6},
        "the layer forgotten": {"GPU, both away": 0.0},
        "not cut": {"GPU, nothing away": 109.2},
        "cut over one node": {"GPU, nothing away": 28.2},
        "every node has all": {"node, states away": 144.0},
        "a GPU's share": {"node, states away": 18.0},
        "no reserve": {"node, states away": 48.0},
        "built once": {"node, nothing away, built whole": 36.0},
        "built on all nodes": {"node, nothing away, built whole": 288.0},
        "built in 16 bits": {"node, nothing away, built whole": 72.0},
        "both at once": {"node, both away, built whole": 225.0},
        "building forgotten": {"node, both away, built whole": 81.0},
    },
    "hides": {
        "not cut": {"down": 1.0, "up": 1.0},
        "in float32": {"down": 0.25, "up": 0.25},
        "states on the bus": {"down": 0.75, "up": 0.75},
        "the forward's operations": {"backward": 0.49152},
        "forward and backward": {"backward": 1.47456},
        "the backward alone": {"micro-batches": 42},
        "moments alone": {"read": 3.0, "update": 3.0},
        "with the gradient": {"read": 6.0, "update": 6.0},
        "one after the other": {"update": 9.0},
        "a tenth of the computing": {"micro-batches": 31},
        "one set": {"window": 0.6},
        "two sets": {"window": 1.2},
        "rounded down": {"micro-batches": 27},
    },
}
CASES = [(name, idea) for name, ideas in MISREAD.items() for idea in ideas]


@pytest.mark.parametrize(("name", "idea"), CASES)
def test_a_misreading_is_named(desk, name, idea):
    given = {**RIGHT[name], **MISREAD[name][idea]}
    verdict = desk.check(name, {}, {name: given})
    said = {m.name for m in PARTS[name].mistakes() for k in MISREAD[name][idea]
            if k in m.values and close(m.values[k], given[k])}  # fmt: skip
    assert (verdict.outcome, verdict.points) == ("wrong", 0) and idea in said, str(verdict)
    assert verdict.name in said, str(verdict)  # two ideas may lead to one number
    off = desk.check(name, {}, {name: {**RIGHT[name], next(iter(given)): 123.0}})
    assert (off.outcome, off.name) == ("wrong", "wrong number"), str(off)


@pytest.mark.parametrize("name", RIGHT)
def test_every_idea_is_tried_and_none_is_the_right_number(name):
    assert {m.name for m in PARTS[name].mistakes()} == set(MISREAD[name])
    for mistake in PARTS[name].mistakes():
        for field, value in mistake.values.items():
            assert not close(value, RIGHT[name][field]), (mistake.name, field)
            assert math.isfinite(value)


@pytest.mark.parametrize("name", RIGHT)
def test_the_reference_is_right_and_a_blank_is_not_attempted(desk, name):
    cells = nbformat.read(ROOT / "solutions/12_offload" / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"{name} = {{" in c.source)
    found: dict = {}
    exec(source, found)
    assert desk.check(name, {}, found).outcome == "right"
    first = next(iter(RIGHT[name]))
    verdict = desk.check(name, {}, {name: {**RIGHT[name], first: ...}})
    assert verdict.outcome == "not attempted" and repr(first) in verdict.text


@pytest.mark.parametrize("name", RIGHT)
def test_the_exercise_holds_no_answer(name):
    cells = nbformat.read(ROOT / "exercises/12_offload" / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"{name} = {{" in c.source)
    assert source.count("...") == len(RIGHT[name])
    assert not re.search(r"\": *[\d(]", source)
    exercise = frame.find(name)
    said = " ".join(exercise.hints) + exercise.when_right
    assert not re.search(r"\b(18|81|144|521|28|4\.5)\b", said)
