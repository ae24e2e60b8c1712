"""Lesson 09's question with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_09 import sixteen

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions" / "09_zero_1"
EXERCISES = ROOT / "exercises" / "09_zero_1"


def numbers(
    half=(2, 2), single=(4, 4), master=4, moments=8, n=32, whole=(1, 1), master_of_float=0,
    float_gradient=4 / 32, momentum=4, moves=(2, 2), of_a_move=31 / 32, sent=2, last=23,
) -> dict[str, float]:  # fmt: skip
    """The nine numbers by hand; each argument is something that may be misread."""
    kept = half[0] * whole[0] + half[1] * whole[1]
    wide = single[0] * whole[0] + single[1] * whole[1]
    return {
        "bytes a parameter": sum(half) + master + moments,
        "stage 0": 12 * (sum(half) + master + moments),
        "stage 1": 12 * (kept + (master + moments) / n),
        "stage 1, float32": 12 * (wide + (master_of_float + moments) / n),
        "before the update": 12 * (kept + (master + moments) / n + float_gradient),
        "momentum": 12 * (kept + (master + momentum) / n),
        "sent at stage 0": moves[0] * 12 * sent * of_a_move,
        "sent at stage 1": moves[1] * 12 * sent * of_a_move,
        "the last rank's moments": moments * last,
    }


RIGHT = numbers()
# How an answer is wrong, what is written, the name under which it is refused.
MISREAD = [
    ("no master", numbers(master=0), "no master copy"),
    ("short moments", numbers(moments=4, momentum=2), "moments in 16 bits"),
    ("no gradients", {**numbers(half=(2, 0)), "stage 1, float32": RIGHT["stage 1, float32"]},
     "gradients forgotten"),
    ("all cut", numbers(whole=(1 / 32, 1 / 32)), "everything cut"),
    ("stage 2", numbers(whole=(1, 1 / 32)), "gradients cut"),
    ("not cut", numbers(n=1), "nothing cut"),
    ("master of float32", numbers(master_of_float=4), "a master copy of float32"),
    ("wide gradients", numbers(float_gradient=4), "float32 gradients whole"),
    ("none of them", numbers(float_gradient=0), "float32 gradients forgotten"),
    ("as Adam", numbers(momentum=8), "momentum counted as Adam"),
    ("no momentum", numbers(momentum=0), "no momentum at all"),
    ("one move", numbers(moves=(1, 1)), "all-reduce counted as one move"),
    ("elements", numbers(sent=1), "all-reduce counted as one move"),
    ("half of it", numbers(moves=(2, 1)), "the half that carries parameters"),
    ("three moves", numbers(moves=(2, 3)), "three moves"),
    ("the limit", numbers(of_a_move=1), "limit for large N"),
    ("wide messages", numbers(sent=4), "sent in float32"),
    ("padding", numbers(last=26), "padding has moments"),
    ("equal", numbers(last=101 / 4), "equal shares"),
    ("down", numbers(last=25), "rounded down"),
    ("all moments", numbers(last=101), "moments of all"),
    ("18 bytes", numbers(half=(2, 4)) | {"stage 1, float32": RIGHT["stage 1, float32"]},
     "gradients in float32"),
    ("20 bytes", {**RIGHT, "bytes a parameter": 20, "stage 0": 240}, "gradients in both types"),
    ("copied in 16 bits", numbers(float_gradient=2 / 32), "float32 gradients of 2 bytes"),
    ("a master copy each", {**RIGHT, "stage 1": 99, "momentum": 97.5}, "master copy whole"),
    ("no states", {**RIGHT, "momentum": 48}, "states forgotten"),
    ("all 32", {**RIGHT, "stage 0": 6144, "sent at stage 0": 1488}, "all ranks together"),
    ("an n-th", {**RIGHT, "stage 0": 6}, "a part of the whole"),
    ("GiB", {k: v / 1.073741824 if k not in ("bytes a parameter", "the last rank's moments") else v
             for k, v in RIGHT.items()}, "GiB for GB"),
    ("one whole move", {**RIGHT, "sent at stage 0": 24}, "one move, and all of it"),
    ("with the master copy", numbers() | {"the last rank's moments": 276},
     "the master copy is no moment"),
    ("megabytes", {k: v * 1e3 if k not in ("bytes a parameter", "the last rank's moments") else v
                   for k, v in RIGHT.items()}, "unit"),
    ("two ideas", {**RIGHT, "momentum": 12 * (4 + 12 / 32), "sent at stage 1": 12 * 2 * 31 / 32},
     "several ideas"),
    ("unforeseen", {**RIGHT, "stage 0": 77}, "wrong number"),
]  # fmt: skip


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, given: object) -> frame.Verdict:
    return desk.check("sixteen_bytes", {}, {"sixteen_bytes": given})


def written(folder: Path) -> dict:
    """What the notebook's answer cell leaves in the variable."""
    cells = nbformat.read(folder / "sixteen_bytes.ipynb", as_version=4).cells
    space: dict = {}
    exec(next(c.source for c in cells if c.id == "sixteen_bytes-answer"), space)
    return space["sixteen_bytes"]


def test_the_numbers_of_the_solution_are_right(desk):
    verdict = answered(desk, written(SOLUTIONS))
    assert (verdict.outcome, verdict.points) == ("right", 3), str(verdict)
    assert answered(desk, RIGHT).outcome == "right"
    tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in RIGHT.items()}
    assert answered(desk, tensors).outcome == "right"
    assert not desk.judge.running


def test_the_numbers_of_the_exercise_are_blank(desk):
    handed_out = written(EXERCISES)
    assert set(handed_out.values()) == {...}
    assert tuple(handed_out) == frame.find("sixteen_bytes").fields == tuple(RIGHT)
    assert answered(desk, handed_out).outcome == "not attempted"
    verdict = answered(desk, {**RIGHT, "momentum": ...})
    assert verdict.outcome == "not attempted" and "'momentum'" in verdict.text


@pytest.mark.parametrize(
    ("given", "called"),
    [(given, called) for _, given, called in MISREAD],
    ids=[how for how, _, _ in MISREAD],
)
def test_a_misreading_is_refused_by_its_name(desk, given, called):
    verdict = answered(desk, given)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", called, 0), str(verdict)


@pytest.mark.parametrize("value", ["16 bytes", math.nan, torch.ones(3), True], ids=str)
def test_what_is_no_number_is_told_so(desk, value):
    assert answered(desk, {**RIGHT, "stage 0": value}).name == "not a number"


def test_every_idea_goes_by_its_own_name_and_is_tried():
    names = {mistake.name for mistake in sixteen.MISTAKES}
    assert len(names) == len(sixteen.MISTAKES)
    assert names <= {called for _, _, called in MISREAD}
    assert all(mistake.values for mistake in sixteen.MISTAKES)


def test_neither_a_hint_nor_a_verdict_gives_a_number_away():
    exercise = frame.find("sixteen_bytes")
    said = " ".join(exercise.hints) + exercise.when_right.replace("stage 1", "")
    assert not re.search(r"\d", said.replace("float32", ""))
