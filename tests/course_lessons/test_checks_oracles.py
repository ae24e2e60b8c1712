"""What checks and questions rest on, by oracles of their own: what real ranks show, boxes, buckets.

Right answers and likely wrong ones stand in `tests/course_lessons/answers`.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist

from course_lessons.lesson_02 import mystery_cut as mystery
from course_lessons.lesson_09.is_sharded import PASSED, REFUSED
from course_lessons.lesson_09.pieces_of import buckets, readings
from course_lessons.lesson_09.pieces_of import right as right_pieces
from course_lib.tensor_parallel import conjugates as pairs
from tests.course_lessons.answers import lesson_09, lesson_09_shards
from tests.course_lessons.answers.lesson_03_numbers import NUMBERS as ANSWERS
from tests.course_lessons.answers.lesson_03_numbers import filled

ROOT = Path(__file__).resolve().parents[2]
SOLUTIONS = ROOT / "solutions" / "02_one_product"


@pytest.fixture(scope="module")
def layers(desk) -> list[dict[str, str]]:
    """What each of three ranks shows of the layers of `mystery_cut`."""
    desk.judge.ready()
    run = "from course_lessons.lesson_02 import mystery_cut as mystery\n"
    run += "seen = {case: mystery.run(case, group) for case in mystery.LAYERS}"
    assert not desk.judge.run(run).failed
    return desk.judge.pull("seen")


def test_three_real_ranks_show_what_the_notebook_shows(layers):
    cells = nbformat.read(SOLUTIONS / "mystery_cut.ipynb", as_version=4).cells
    shown = next(c.outputs[0].text for c in cells if c.id == "mystery_cut-show")
    assert layers[0] == layers[1] == layers[2]  # as the question says
    text = "\n".join(layers[1][case] for case in "ABCDE")
    assert text == shown.replace("[rank 1] ", "").rstrip("\n")


def test_what_is_shown_agrees_with_what_is_right(layers):
    """The sum's phase and size are those that the cut owes; the shapes are those of its parts."""
    for case, text in layers[0].items():
        layer = mystery.LAYERS[case]
        b, h, f = (size // (3 if at == layer.cut else 1) for size, at in (
            (layer.b, mystery.BATCH), (layer.h, mystery.ROWS), (layer.f, mystery.COLUMNS)
        ))  # fmt: skip
        assert f"W [{h}, {f}]" in text
        phase, count = {
            mystery.COLUMNS: ("backward", layer.b * layer.h),
            mystery.ROWS: ("forward", layer.b * layer.f),
            mystery.BATCH: ("backward", layer.h * layer.f),
        }[layer.cut]
        sums = re.findall(r"(forward|backward) +all_reduce of (\d+) elements", text)
        assert sums == [(phase, str(count))]
        assert ("all_gather" in text) == layer.whole_ends
        ends = (b, layer.h if layer.whole_ends else h), (b, layer.f if layer.whole_ends else f)
        assert f"X {list(ends[0])}  W" in text
        assert f"Y {list(ends[1])}\n" in text


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


NOT_TRIED = {"parameters averaged", "even"}  # a box that fails on two counts, and one on none


@pytest.mark.parametrize("seed", range(20))
def test_no_idea_about_pieces_is_the_right_one(seed):
    for n in (2, 3):
        for lengths in buckets(seed, n):
            every = [right_pieces(lengths, n, rank) for rank in range(n)]
            assert sum(b - a for own in every for _, a, b, _ in own) == sum(lengths)
    asked = [(c, n, r) for n in (2, 3, 7) for c in buckets(seed, n) for r in range(n)]
    for ideas in zip(*map(readings, asked), strict=True):
        assert any(sorted(p) != right_pieces(*a) for (_, p), a in zip(ideas, asked, strict=True)), (
            ideas[0]
        )


def test_every_box_decides_some_answer_but_two():
    answers = [lesson_09.WRONG["is_sharded"], lesson_09_shards.WRONG["is_sharded"]]
    names = {name for table in answers for _, name in table.values()}
    for kind, name in {**PASSED, **REFUSED}.items():
        assert name in names or kind in NOT_TRIED
