"""Lesson 04's questions with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import torch
import torch.nn.functional as F

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_04 import pays

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions" / "04_megatron_mlp"
EXERCISES = ROOT / "exercises" / "04_megatron_mlp"


def bent(a: float, b: float, bend=F.gelu, other=F.relu) -> dict[str, float]:
    """A pair with its four values, from torch's own functions."""
    x, y = torch.tensor([a, b], dtype=torch.float64)
    return {
        "a": a,
        "b": b,
        "GELU(a) + GELU(b)": float(bend(x) + bend(y)),
        "GELU(a + b)": float(bend(x + y)),
        "ReLU(a) + ReLU(b)": float(other(x) + other(y)),
        "ReLU(a + b)": float(other(x + y)),
    }


def sizes(
    work: float = 48, reduces: float = 2, alphas: float = 14, sent: float = 1.75, item: float = 2
) -> dict[str, float]:
    """The seven numbers by the formula, solved by hand: `work` FLOP for each token and h²."""
    found = {"one rank": 1e3 * work * 2048 * 1024**2 / 200e12}
    links = {"NVLink": (4e-6, 300e9), "InfiniBand": (30e-6, 25e9)}
    for link, (alpha, rate) in links.items():
        wide = sent * 2048 * item / rate
        found[f"one all-reduce, {link}"] = 1e3 * (alphas * alpha + wide * 1024)
        for name, times in (("faster", 1), ("four times as fast", 4)):
            p, q = work * 2048 / 200e12 * (1 / times - 1 / 8), reduces * wide
            r = reduces * alphas * alpha
            found[f"{name} from, {link}"] = (q + math.sqrt(q * q + 4 * p * r)) / (2 * p)
    times_first = sorted(found, key=lambda name: " from, " in name)  # else in the order above
    return {name: found[name] for name in times_first}


ANSWERS = {"gelu_counterexample": bent(1, -1), "tp_pays": sizes()}
G, T = ANSWERS["gelu_counterexample"], ANSWERS["tp_pays"]
# Exercise, how an answer is wrong, what is written, the name under which it is refused.
MISREAD = [
    ("gelu_counterexample", "zero", bent(0, 1), "zero"),
    ("gelu_counterexample", "both zero", bent(0, 0), "zero"),
    ("gelu_counterexample", "far right", bent(6, 7), "straight part"),
    ("gelu_counterexample", "far left", bent(-6, -7), "straight part"),
    ("gelu_counterexample", "very far", bent(1e6, 1e6), "far out"),
    ("gelu_counterexample", "both positive", bent(1, 1), "same sign"),
    ("gelu_counterexample", "both negative", bent(-1, -1), "same sign"),
    ("gelu_counterexample", "larger", bent(2, -1), "not the smallest"),
    ("gelu_counterexample", "halves", bent(0.5, -0.5), "not whole"),
    (
        "gelu_counterexample",
        "exchanged",
        {**G, **dict(zip(list(G)[2:], (0, 0.683, 0, 1), strict=True))},
        "sides exchanged",
    ),
    ("gelu_counterexample", "odd", {**G, "GELU(a) + GELU(b)": 0.0}, "taken for odd"),
    ("gelu_counterexample", "ReLU", {**G, "GELU(a) + GELU(b)": 1}, "ReLU's values"),
    ("gelu_counterexample", "cut off", {**G, "GELU(a) + GELU(b)": 0.841}, "cut off below zero"),
    ("gelu_counterexample", "SiLU", bent(-1, 1, F.silu), "SiLU's values"),
    (
        "gelu_counterexample",
        "the distribution",
        {**G, "GELU(a) + GELU(b)": 1, "GELU(a + b)": 0.5},
        "the distribution alone",
    ),
    (
        "gelu_counterexample",
        "equal sides",
        {**G, "GELU(a) + GELU(b)": 0.0, "ReLU(a) + ReLU(b)": 0.0},
        "equal sides",
    ),
    ("gelu_counterexample", "unforeseen", {**G, "GELU(a + b)": 3}, "wrong number"),
    ("tp_pays", "forward only", sizes(work=16, reduces=1), "forward only"),
    ("tp_pays", "no backward products", sizes(work=16), "the backward computes too"),
    ("tp_pays", "one gradient", sizes(work=32), "two gradients for a product"),
    ("tp_pays", "one weight", sizes(work=24), "half of the FLOP"),
    ("tp_pays", "one all-reduce", sizes(reduces=1), "one all-reduce"),
    ("tp_pays", "a layer's", sizes(reduces=4), "four all-reduces"),
    ("tp_pays", "the article's count", sizes(sent=2), "limit for large N"),
    ("tp_pays", "without alpha", sizes(alphas=0), "no α"),
    ("tp_pays", "one alpha", sizes(alphas=1), "one α for all"),
    ("tp_pays", "one round", sizes(alphas=7, sent=0.875), "half of the way"),
    ("tp_pays", "α's of one round", sizes(alphas=7), "α's of one round"),
    ("tp_pays", "five products", sizes(work=40), "no dX"),
    ("tp_pays", "three weights", sizes(work=72), "SwiGLU's products"),
    ("tp_pays", "elements", sizes(item=1), "elements, not bytes"),
    ("tp_pays", "four bytes", sizes(item=4), "float32"),
    ("tp_pays", "h wide inside", sizes(work=12), "no wider inside"),
    (
        "tp_pays",
        "no compute on the eight",
        {**T, **{k: v for k, v in replace(pays.RIGHT, share=0).answers().items() if "from" in k}},
        "nothing left to compute",
    ),
    ("tp_pays", "seconds", {**T, "one rank": T["one rank"] / 1e3}, "unit"),
    ("tp_pays", "unforeseen", {**T, "faster from, NVLink": 77}, "wrong number"),
]  # fmt: skip


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, name: str, given: object) -> frame.Verdict:
    return desk.check(name, {}, {name: given})


def cell(folder: Path, name: str, kind: str) -> str:
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-{kind}")


def numbers(folder: Path, name: str) -> object:
    """What the notebook's answer cell leaves in the variable."""
    space: dict = {}
    exec(cell(folder, name, "answer"), space)
    return space[name]


@pytest.mark.parametrize("name", ANSWERS)
def test_the_numbers_of_the_solution_are_right(desk, name):
    verdict = answered(desk, name, numbers(SOLUTIONS, name))
    assert (verdict.outcome, verdict.points) == ("right", frame.find(name).points), str(verdict)
    assert answered(desk, name, ANSWERS[name]).outcome == "right"
    tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in ANSWERS[name].items()}
    assert answered(desk, name, tensors).outcome == "right"


def test_either_order_of_the_pair_is_right(desk):
    assert answered(desk, "gelu_counterexample", bent(-1, 1)).outcome == "right"


@pytest.mark.parametrize("name", ANSWERS)
def test_the_numbers_of_the_exercise_are_blank(desk, name):
    handed_out = numbers(EXERCISES, name)
    assert set(handed_out.values()) == {...}
    assert tuple(handed_out) == frame.find(name).fields == tuple(ANSWERS[name])
    assert answered(desk, name, handed_out).outcome == "not attempted"


@pytest.mark.parametrize(
    ("name", "given", "called"),
    [(name, given, called) for name, _, given, called in MISREAD],
    ids=[f"{name}-{how}" for name, how, _, _ in MISREAD],
)
def test_a_misreading_is_refused_by_its_name(desk, name, given, called):
    verdict = answered(desk, name, given)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", called, 0), str(verdict)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("value", ["0.5 ms", math.nan, torch.ones(3), True], ids=str)
def test_what_is_no_number_is_told_so(desk, name, value):
    given = {**ANSWERS[name], list(ANSWERS[name])[1]: value}
    assert answered(desk, name, given).name == "not a number"


@pytest.mark.parametrize(
    ("entry", "counts"), [(entry, counts) for entry, ways in pays.IDEAS.items() for counts in ways]
)
def test_every_idea_about_time_goes_by_its_own_name(desk, entry, counts):
    name, text = pays.SAYS.of(entry)
    verdict = answered(desk, "tp_pays", replace(pays.RIGHT, **counts).answers())
    assert (verdict.outcome, verdict.name) == ("wrong", name)
    assert text in verdict.text


def test_the_numbers_of_the_other_link_are_known(desk):
    given = {k.replace("NVLink", "?").replace("InfiniBand", "NVLink").replace("?", "InfiniBand"): v
             for k, v in T.items()}  # fmt: skip
    assert answered(desk, "tp_pays", given).name == "links exchanged"


def spellings(value: float) -> set[str]:
    """How somebody might write the number, in several units, with two digits or more."""
    found = set()
    for unit in (1e-3, 1, 1e3):
        scaled = value / unit
        found |= {f"{scaled:.3g}", f"{scaled:.4g}", f"{scaled:,.0f}", f"{scaled:.0f}"}
    return {text for text in found if len(re.sub(r"\D", "", text)) > 1}


@pytest.mark.parametrize("name", ANSWERS)
def test_no_hint_and_no_verdict_holds_a_right_number(desk, name):
    said = [*frame.find(name).hints, frame.find(name).when_right, frame.find(name).title]
    said += [answered(desk, name, given).text for who, _, given, _ in MISREAD if who == name]
    words = set(re.findall(r"\d[\d.,]*\d", " ".join(said)))
    values = [v for v in ANSWERS[name].values() if abs(v) not in (0, 1)]
    assert not words & set().union(*map(spellings, values))
