"""Lesson 03's questions: right numbers are those of two real ranks."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from course_lib.tensor_parallel import conjugates as pairs
from tests.answers.lesson_03_numbers import NUMBERS as ANSWERS
from tests.answers.lesson_03_numbers import filled

IN, RIGHT, PLAIN = ANSWERS


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
