"""Lesson 03's questions: right numbers are those of two real ranks."""

from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.tensor_parallel import conjugates as pairs
from tests.answers.lesson_03_numbers import NUMBERS as ANSWERS
from tests.answers.lesson_03_numbers import WRONG, filled

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS, EXERCISES = ROOT / "solutions" / "03_f_and_g", ROOT / "exercises" / "03_f_and_g"


IN, RIGHT, PLAIN = ANSWERS


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, name: str, given: object) -> frame.Verdict:
    return desk.check(name, {}, {name: given})


def cells_of(folder: Path, name: str) -> list[nbformat.NotebookNode]:
    return nbformat.read(folder / f"{name}.ipynb", as_version=4).cells


def numbers(folder: Path, name: str) -> object:
    """What the notebook's answer cell leaves in the variable."""
    space: dict = {}
    exec(next(c.source for c in cells_of(folder, name) if c.id == f"{name}-answer"), space)
    return space[name]


class InPlace(torch.autograd.Function):
    """g in place."""

    @staticmethod
    def forward(ctx, p):
        dist.all_reduce(p)
        return p

    @staticmethod
    def backward(ctx, dy):
        return dy


class InPlaceBack(torch.autograd.Function):
    """f in place."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        dist.all_reduce(dy)
        return dy


def three_programs(me) -> dict[str, dict[str, float]]:
    """The graphs of the three exercises, as their notebooks describe them, on this rank."""

    def leaf(*values: float) -> torch.Tensor:
        kept = torch.tensor(values[me.rank], dtype=torch.float64, device=me.device)
        return kept.requires_grad_()

    def plain(t: torch.Tensor) -> torch.Tensor:
        total = t.clone()
        dist.all_reduce(total)
        return total

    found: dict[str, dict[str, float]] = {name: {} for name in (IN, RIGHT, PLAIN, "wrong")}
    mine, everyone = f", rank {me.rank}", dist.group.WORLD
    for name, operation, x in (
        ("exp", torch.exp, leaf(math.log(2), math.log(3))),
        ("relu", torch.relu, leaf(-1, 2)),
        ("square", lambda x: x * x, leaf(3, 5)),
    ):
        InPlace.apply(operation(x)).backward()
        found[IN][name + mine] = x.grad.item()
    u, x = leaf(1, 1), leaf(1, 1)
    ((2, 3)[me.rank] * (5 * u + InPlaceBack.apply(x))).backward()
    found[IN]["beside" + mine] = u.grad.item()

    w = torch.tensor([[1.0, 2.0], [3.0, -1.0]][me.rank], dtype=torch.float64, device=me.device)
    for name, after, program in (
        ("A", "replicated", lambda X: X[0] * X[1] ** 2),
        ("B", "sharded", lambda X: (X * w).sum()),
        ("C", "sharded", lambda X: pairs.reduce((X * w).sum(), everyone) ** 2 / 2),
        ("D", "replicated", lambda X: (pairs.copy(X, everyone) * w).sum()),
    ):
        for how in ("replicated", "sharded"):
            x = leaf(3, 5)
            program(pairs.gather(x.reshape(1), everyone, 0, after=how)).backward()
            found[RIGHT if how == after else "wrong"][name + mine] = x.grad.item()

    a, c = leaf(1, 3), (8, 16)[me.rank]
    (c * a / plain(a)).backward()
    found[PLAIN]["A plain" + mine] = a.grad.item()
    a = leaf(1, 3)
    total = pairs.copy(pairs.reduce(a, everyone), everyone)  # g, then f: landed in own
    (c * a / total).backward()
    found[PLAIN]["A right" + mine] = a.grad.item()
    weight = leaf(1, 2)
    (plain((2, 3)[me.rank] * weight) ** 2 / 2).backward()
    found[PLAIN]["B plain" + mine] = weight.grad.item()
    return found


@pytest.mark.filterwarnings("ignore:.*autograd kernel was not registered.*")
def test_two_real_ranks_give_the_right_numbers(pool):
    rows = pool.run(2, three_programs)
    for name, right in ANSWERS.items():
        measured = {key: value for row in rows for key, value in row[name].items()}
        assert measured == pytest.approx(right, abs=1e-10)
    # The other backward of each gather gives something else, and has a name.
    wrong = {key: value for row in rows for key, value in row["wrong"].items()}
    assert wrong == pytest.approx(filled("A,B,C,D", 50, 60, 1, -1, 17, -17, 8, 2))


@pytest.mark.parametrize("name", ANSWERS)
def test_the_numbers_of_the_solution_are_right_and_those_of_the_exercise_blank(desk, name):
    verdict = answered(desk, name, numbers(SOLUTIONS, name))
    assert (verdict.outcome, verdict.points) == ("right", frame.find(name).points), str(verdict)
    assert answered(desk, name, ANSWERS[name]).outcome == "right"
    handed_out = numbers(EXERCISES, name)
    assert set(handed_out.values()) == {...}
    blank = next(c for c in cells_of(EXERCISES, name) if c.id == f"{name}-answer")
    assert "#" not in blank.source  # a comment beside an answer is handed out with the blank
    assert tuple(handed_out) == frame.find(name).fields == tuple(ANSWERS[name])
    assert answered(desk, name, handed_out).outcome == "not attempted"


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("value", ["5 each", math.nan, torch.ones(3), True], ids=str)
def test_what_is_no_number_is_told_so(desk, name, value):
    given = {**ANSWERS[name], list(ANSWERS[name])[1]: value}
    assert answered(desk, name, given).name == "not a number"


@pytest.mark.parametrize("name", ANSWERS)
def test_no_hint_and_no_verdict_holds_a_right_number(desk, name):
    said = [*frame.find(name).hints, frame.find(name).when_right]
    said += [answered(desk, name, given).text for given, _ in WRONG[name].values()]
    words = set(re.findall(r"(?<![\w'])-?\d+(?:\.\d+)?(?![\w'])", " ".join(said)))
    right = {f"{value:g}" for value in ANSWERS[name].values() if abs(value) > 2 or value % 1}
    assert right
    # "5 u" and "X[0]" are of the question; a number that stands for a gradient is none of them.
    assert not words & right - {"5"}
