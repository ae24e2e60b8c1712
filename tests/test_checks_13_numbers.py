"""Lesson 13's question with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_13 import clinic
from course_lib.classroom.checks.thought import close

ROOT = Path(__file__).resolve().parent.parent
NAME = "read_config"
RIGHT = {  # by hand, from the config that the question prints
    "batch": 4 * 8 * 2,
    "clipping": 1.0,
    "buckets, GB": 3.6,
    "reduce_bucket_size": 1_048_576,
    "stage3_prefetch_bucket_size": 943_718,
    "stage3_param_persistence_threshold": 10_240,
    "reduce_bucket_size, own loop": 500_000_000,
    "stage, misspelt": 0,
    "misspellings that raise": 1,
}
# What is written in one field, and the name under which it is refused.
MISREAD = [
    ("batch", 32, "one GPU's batch"),
    ("batch", 8, "accumulation forgotten"),
    ("batch", 4, "a micro-batch"),
    ("batch", 128, "ranks counted twice"),
    ("clipping", 0.3, "what the author meant"),
    ("clipping", 0, "no clipping"),
    ("buckets, GB", 0.8, "overlap costs nothing"),
    ("buckets, GB", 0.4, "overlap costs nothing"),
    ("buckets, GB", 1.8, "half of it"),
    ("buckets, GB", 7.2, "float32"),
    ("buckets, GB", 0.9, "elements alone"),
    ("buckets, GB", 3.6e9 / 2**30, "GiB"),
    ("reduce_bucket_size", 1024, "hidden size, not its square"),
    ("reduce_bucket_size", 2_097_152, "bytes"),
    ("reduce_bucket_size", 5e8, "DeepSpeed's default"),
    ("reduce_bucket_size", 943_718, "the share of the prefetch"),
    ("reduce_bucket_size", 2e8, "the file's own"),
    ("stage3_prefetch_bucket_size", 1_048_576, "all of the bucket"),
    ("stage3_prefetch_bucket_size", 5e7, "DeepSpeed's default"),
    ("stage3_prefetch_bucket_size", 921, "hidden size, not its square"),
    ("stage3_param_persistence_threshold", 1_048_576, "persistence of a matrix"),
    ("stage3_param_persistence_threshold", 10_485_760, "the square as well"),
    ("stage3_param_persistence_threshold", 1024, "one vector"),
    ("stage3_param_persistence_threshold", 1e5, "DeepSpeed's default"),
    ("reduce_bucket_size, own loop", 1_048_576, "resolved by nobody"),
    ("reduce_bucket_size, own loop", 5e7, "the prefetch's default"),
    ("reduce_bucket_size, own loop", 1e9, "bytes"),
    ("reduce_bucket_size, own loop", 0, "no bucket"),
    ("reduce_bucket_size, own loop", 2.5e8, "over the GPUs"),
    ("stage, misspelt", 2, "what the author meant"),
    ("stage, misspelt", 3, "what the author meant"),
    ("stage, misspelt", 1, "a default above zero"),
    ("misspellings that raise", 3, "all of them raise"),
    ("misspellings that raise", 2, "two of them raise"),
    ("misspellings that raise", 0, "none of them raises"),
]


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, given: object) -> frame.Verdict:
    return desk.check(NAME, {}, {NAME: given})


def written(folder: str) -> dict:
    """What the notebook's answer cell leaves in the variable."""
    cells = nbformat.read(ROOT / folder / "13_deepspeed" / f"{NAME}.ipynb", as_version=4).cells
    space: dict = {}
    exec(next(c.source for c in cells if c.id == f"{NAME}-answer"), space)
    return space[NAME]


def test_the_right_numbers_are_right_and_those_of_the_solution_too(desk):
    for given in (RIGHT, written("solutions")):
        verdict = answered(desk, given)
        assert (verdict.outcome, verdict.points) == ("right", 3), str(verdict)
    assert not desk.judge.running


def test_the_numbers_of_the_exercise_are_blank(desk):
    handed_out = written("exercises")
    assert set(handed_out.values()) == {...} and tuple(handed_out) == clinic.FIELDS == tuple(RIGHT)
    assert answered(desk, handed_out).outcome == "not attempted"
    assert answered(desk, {**RIGHT, "batch": ...}).outcome == "not attempted"


@pytest.mark.parametrize(("field", "value", "called"), MISREAD)
def test_a_misreading_is_refused_by_its_name(desk, field, value, called):
    verdict = answered(desk, {**RIGHT, field: value})
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", called, 0), str(verdict)
    off = answered(desk, {**RIGHT, field: 77.7})
    assert (off.outcome, off.name) == ("wrong", "wrong number"), str(off)


def test_each_of_several_misreadings_is_named(desk):
    verdict = answered(desk, {**RIGHT, "batch": 32, "stage, misspelt": 2})
    assert verdict.name == "several ideas" and "'batch'" in verdict.text


def test_every_idea_is_tried_and_none_is_the_right_number():
    assert {mistake.name for mistake in clinic.MISTAKES} == {called for _, _, called in MISREAD}
    for mistake in clinic.MISTAKES:
        for field, value in mistake.values.items():
            assert math.isfinite(value) and not close(value, RIGHT[field]), (mistake.name, field)


def test_no_hint_and_no_verdict_holds_a_right_number(desk):
    exercise = frame.find(NAME)
    said = [*exercise.hints, exercise.when_right]
    said += [answered(desk, {**RIGHT, field: value}).text for field, value, _ in MISREAD]
    numbers = r"\b(64|3\.6|4\.5|1,?048,?576|943,?718|10,?240|5e8|500 million)\b"
    assert not re.search(numbers, " ".join(said))
