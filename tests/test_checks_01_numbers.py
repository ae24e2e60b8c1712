"""Lesson 01's questions with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS, EXERCISES = ROOT / "solutions" / "01_collectives", ROOT / "exercises" / "01_collectives"
B = 600_000 * 4
ALPHA, RATE, N = 30e-6, 10e9, 64


def per_n(sent: Callable[[int], float]) -> dict[int, float]:
    return {n: sent(n) for n in (2, 3, 4, 8)}


def times(ring: tuple[float, float], tree: tuple[float, float], meet: float | None = None) -> dict:
    """Each way as (how many α, how many tensors), the sizes in kB and the times in ms."""
    found = {}
    for size, name in ((1e3, "1 kB"), (1e8, "100 MB")):
        for way, (messages, tensors) in (("ring", ring), ("tree", tree)):
            found[f"{way} {name}"] = 1e3 * (messages * ALPHA + tensors * size / RATE)
    found["they meet at"] = 1e-3 * (ring[0] - tree[0]) * ALPHA * RATE / (tree[1] - ring[1] or 1)
    return found if meet is None else {**found, "they meet at": meet}


RING, TREE = (126, 126 / 64), (12, 12)
MEET, SECONDS = "they meet at", times((126e-3, 126e-3 / 64), (12e-3, 12e-3))
ANSWERS = {
    "ring_bytes": per_n(lambda n: 2 * (n - 1) * B / n),
    "tree_or_ring": times(RING, TREE),
    "who_hangs": {"A": 2, "B": 1, "C": 0},
}
# Exercise, how an answer is wrong, what is written, the name under which it is refused.
MISREAD = [
    ("ring_bytes", "one round", per_n(lambda n: (n - 1) * B / n), "half of the way"),
    ("ring_bytes", "both ways", per_n(lambda n: 4 * (n - 1) * B / n), "sent and received"),
    ("ring_bytes", "of all ranks", per_n(lambda n: 2 * (n - 1) * B), "all ranks together"),
    ("ring_bytes", "to everybody", per_n(lambda n: (n - 1) * B), "whole tensors"),
    ("ring_bytes", "n steps", per_n(lambda n: 2 * B), "one step too many"),
    ("ring_bytes", "the tensor", per_n(lambda n: B), "the tensor once"),
    ("ring_bytes", "a message", per_n(lambda n: B / n), "one message"),
    ("ring_bytes", "numbers", per_n(lambda n: 2 * (n - 1) * B / n / 4), "numbers, not bytes"),
    ("ring_bytes", "MB", per_n(lambda n: 2 * (n - 1) * B / n / 1e6), "unit"),
    ("ring_bytes", "unforeseen", {**ANSWERS["ring_bytes"], 8: 5_000_000}, "wrong number"),
    ("tree_or_ring", "no chunks", times((126, 126), TREE), "whole tensors round the ring"),
    ("tree_or_ring", "chunks", times(RING, (12, 12 / 64)), "chunks up the tree"),
    ("tree_or_ring", "one α", times((1, 126 / 64), (1, 12)), "one α for all"),
    ("tree_or_ring", "half", times((63, 63 / 64), (6, 6)), "half of the way"),
    ("tree_or_ring", "half a ring", times((63, 63 / 64), TREE), "half of the way"),
    ("tree_or_ring", "half a tree", times(RING, (6, 6)), "half of the way"),
    ("tree_or_ring", "a queue", times(RING, (126, 126)), "a message to each"),
    ("tree_or_ring", "bits", times((126, 8 * 126 / 64), (12, 96)), "bits"),
    ("tree_or_ring", "α/β", times(RING, TREE, 300.0), "α over β"),
    ("tree_or_ring", "α's alone", times(RING, TREE, 3150.0), "half of the equation"),
    ("tree_or_ring", "no ring's bytes", times(RING, TREE, 2850.0), "half of the equation"),
    ("tree_or_ring", "bytes", times(RING, TREE, 3_409_346), "unit"),
    ("tree_or_ring", "s", {**SECONDS, MEET: 3409.346}, "seconds"),
    ("tree_or_ring", "SI", {**SECONDS, MEET: 3_409_346}, "unit"),
    ("tree_or_ring", "unforeseen", times(RING, TREE, 77), "wrong number"),
    ("tree_or_ring", "MiB", {**times(RING, TREE), "tree 100 MB": 126.19}, "powers of two"),
    ("who_hangs", "from one", {"A": 3, "B": 2, "C": 1}, "counted from one"),
    ("who_hangs", "first lines", {"A": 0, "B": 0, "C": 2}, "the first that is listed"),
    ("who_hangs", "all three", {"A": 0, "B": 2, "C": 1}, "several ideas"),
    ("who_hangs", "who waits", {"A": 1, "B": 1, "C": 0}, "the one that waits"),
    ("who_hangs", "who waits to receive", {"A": 2, "B": 2, "C": 0}, "the one that waits"),
    ("who_hangs", "ahead", {"A": 2, "B": 0, "C": 0}, "ahead, so it skipped one"),
    ("who_hangs", "time out", {"A": 2, "B": 1, "C": 1}, "the loudest error"),
    ("who_hangs", "the other time out", {"A": 2, "B": 1, "C": 2}, "the loudest error"),
    ("who_hangs", "a rank there is not", {"A": 2, "B": 7, "C": 0}, "no such rank"),
    ("who_hangs", "half a rank", {"A": 2, "B": 0.5, "C": 0}, "no such rank"),
]


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


@pytest.mark.parametrize("name", ANSWERS)
def test_the_numbers_of_the_exercise_are_blank(desk, name):
    handed_out = numbers(EXERCISES, name)
    assert set(handed_out.values()) == {...}
    assert tuple(handed_out) == frame.find(name).fields == tuple(ANSWERS[name])
    assert answered(desk, name, handed_out).outcome == "not attempted"
    one = {**handed_out, **dict(list(ANSWERS[name].items())[:1])}
    verdict = answered(desk, name, one)
    assert (verdict.outcome, verdict.points) == ("not attempted", 0)
    assert "Still blank for " in verdict.text


@pytest.mark.parametrize(
    ("name", "given", "called"),
    [(name, given, called) for name, _, given, called in MISREAD],
    ids=[f"{name}-{how}" for name, how, _, _ in MISREAD],
)
def test_a_misreading_is_refused_by_its_name(desk, name, given, called):
    verdict = answered(desk, name, given)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", called, 0), str(verdict)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("value", ["12 MB", math.nan, torch.ones(3), True], ids=str)
def test_what_is_no_number_is_told_so(desk, name, value):
    given = {**ANSWERS[name], list(ANSWERS[name])[1]: value}
    assert answered(desk, name, given).name == "not a number"


def test_all_that_is_right_so_far_is_said(desk):
    text = answered(desk, "who_hangs", {"A": 2, "B": 2, "C": 0}).text
    assert text.startswith("Case B, rank 2: ")
    assert "Right so far: 'A' and 'C'." in text
    text = answered(desk, "who_hangs", {"A": 0, "B": 2, "C": 1}).text
    assert re.findall(r"^Case (., rank .): ", text, re.MULTILINE) == [
        "A, rank 0",
        "B, rank 2",
        "C, rank 1",
    ]
    assert "Right so far" not in text
    text = answered(desk, "ring_bytes", {**ANSWERS["ring_bytes"], 3: 1, 8: 1}).text
    assert text == "Not right: what you have for 3 and 8. The rest is right."


def test_what_fits_two_ideas_is_asked_about(desk):
    text = answered(desk, "ring_bytes", per_n(lambda n: 2 * (n - 1) * B)).text
    assert "a whole tensor in each step, or what all ranks send together" in text
    text = answered(desk, "ring_bytes", per_n(lambda n: (n - 1) * B)).text
    assert "from each to each" in text


def spellings(value: float) -> set[str]:
    """How somebody might write the number, in several units, with two digits or more."""
    found = set()
    for unit in (1e-3, 1, 1e3, 1e6):
        scaled = value / unit
        found |= {f"{scaled:g}", f"{scaled:.3g}", f"{scaled:,.0f}", f"{scaled:.0f}"}
    return {
        text for text in found if len(re.sub(r"\D", "", text)) > 1 and float(text.replace(",", ""))
    }


@pytest.mark.parametrize("name", ["ring_bytes", "tree_or_ring"])
def test_no_hint_and_no_verdict_holds_a_right_number(desk, name):
    said = [*frame.find(name).hints, frame.find(name).when_right, frame.find(name).title]
    said += [answered(desk, name, given).text for who, _, given, _ in MISREAD if who == name]
    words = set(re.findall(r"\d[\d.,]*\d", " ".join(said)))
    right = set().union(*map(spellings, ANSWERS[name].values()))
    assert len(right) >= 4 * len(ANSWERS[name])
    assert not words & right


def test_no_hint_and_no_verdict_names_the_rank_that_is_right(desk):
    found = frame.find("who_hangs")
    assert not re.search(r"rank \d", " ".join([*found.hints, found.when_right]))
    for case, right in ANSWERS["who_hangs"].items():
        for rank in {0, 1, 2} - {right}:
            text = answered(desk, "who_hangs", {**ANSWERS["who_hangs"], case: rank}).text
            assert not re.search(rf"(rank|is) {right}\b", text)


def test_nothing_is_measured_before_it_is_predicted():
    cells = nbformat.read(EXERCISES / "ring_bytes.ipynb", as_version=4).cells
    space: dict = {}
    exec(cell(EXERCISES, "ring_bytes", "answer"), space)
    tree = ast.parse(cells[-1].source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    exec(compile(tree, "the last cell", "exec"), space)  # extra_ranks is not even looked for
    assert "sent" not in space
