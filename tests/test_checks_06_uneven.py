"""Lesson 06's mean over uneven pieces, on real ranks: right answers pass, mistakes are named."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.likeliest import likeliest

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "06_sequence"

LOSS = '''
from course_lib.layout import cut, span
from course_lib.tensor_parallel.conjugates import copy, gather, reduce


def uneven_loss(x, table, target, length, group):
    """By f and g."""
    start, stop = span(length, group.size(), group.rank())
    y = x + copy(table, group)[start:stop]
    own = (y - target).square().sum()
    return reduce(own, group) / (x.shape[0] * length * x.shape[2])
'''
# The count travels along, and the places are looked up as an embedding's.
TWO_NUMBERS = """
import torch.nn.functional as F
from course_lib.layout import cut
from course_lib.tensor_parallel.conjugates import copy, reduce


def uneven_loss(x, table, target, length, group):
    sizes = cut(length, group.size())
    first = sum(sizes[: group.rank()])
    places = torch.arange(first, first + sizes[group.rank()])
    y = x + F.embedding(places, copy(table, group))
    total, count = reduce(
        torch.stack([(y - target).square().sum(), torch.tensor(float(x.numel())).double()]), group
    )
    return (total / count)[None]
"""
# Torch's own sum in place, which autograd takes for nothing: here that is what it should be.
IN_PLACE = """
from course_lib.layout import span


class Copies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, group):
        ctx.group = group
        return table.view_as(table)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def uneven_loss(x, table, target, length, group):
    start, stop = span(length, group.size(), group.rank())
    own = (x + Copies.apply(table, group)[start:stop] - target).square().sum() / (
        x.shape[0] * length * x.shape[2]
    )
    whole = own.detach().clone()
    dist.all_reduce(whole, group=group)
    return own + (whole - own.detach())
"""


def loss(*changes: tuple[str, str]) -> str:
    """A right answer with a mistake in it."""
    text = LOSS
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


COUNT = " / (x.shape[0] * length * x.shape[2])"
RETURN = f"reduce(own, group){COUNT}"
WRONG = {
    "its own mean": (
        loss((RETURN, "own / max(1, x.numel())")),
        "own mean",
    ),
    "its own share": (loss(("reduce(own, group)", "own")), "own share"),
    "mean of means": (
        loss((RETURN, "reduce(own / max(1, x.numel()), group) / group.size()")),
        "mean of means",
    ),
    "torch's mean": (
        loss((".square().sum()", ".square().mean()"), (COUNT, " / group.size()")),
        "mean of means",
    ),
    "torch's mean, weighed": (
        loss((".square().sum()", ".square().mean() * x.numel()")),
        "no tokens",
    ),
    "sum of means": (loss((RETURN, "reduce(own / max(1, x.numel()), group)")), "sum of means"),
    "not divided": (loss((COUNT, "")), "sum"),
    "divided twice": (loss((COUNT, COUNT + " / group.size()")), "divided by n"),
    "from 0": (loss(("[start:stop]", "[: stop - start]")), "from 0 everywhere"),
    "rank times its own": (
        loss(
            ("    y = ", "    size = stop - start\n    start = group.rank() * size\n    y = "),
            ("[start:stop]", "[start : start + size]"),
        ),
        "places as if it divided",
    ),
    "rank times the floor": (
        loss(
            (
                "    y = ",
                "    size = stop - start\n    start = group.rank() * (length // group.size())\n"
                "    y = ",
            ),
            ("[start:stop]", "[start : start + size]"),
        ),
        "places as if it divided",
    ),
    "another loss": (loss((".square()", ".abs()")), "wrong loss"),
    "summed backward too": (
        loss(("reduce(own", "reduce(copy(own, group)")),
        "n times the gradient",
    ),
    "a mean backward": (
        loss(
            (f"return {RETURN}", f"mean = {RETURN}\n    return mean / group.size() + "
             "(mean * (1 - 1 / group.size())).detach()"),
        ),
        "gradient divided by n",
    ),
    "through x twice": (
        loss(("    own = ", "    y = y + (x - x.detach())\n    own = ")),
        "wrong gradient",
    ),
    "table not summed": (loss(("copy(table, group)", "table")), "the table's debt"),
    "table summed twice": (
        loss(("copy(table, group)", "copy(copy(table, group), group)")),
        "wrong table",
    ),
    "without a graph": (loss(("reduce(own, group)", "reduce(own, group).detach()")), "no way back"),
    "tokens gathered": (
        loss(
            (f"return {RETURN}",
             'sizes = cut(length, group.size())\n    every = gather(y - target, group, 1, sizes, '
             'after="replicated")\n    return every.square().mean()'),
        ),
        "tokens on the way",
    ),
    "count sent by itself": (
        loss((COUNT, " / reduce(torch.tensor(float(x.numel())).double(), group)")),
        "two messages",
    ),
    "wide table backward": (
        loss(("copy(table, group)", "copy(table.repeat(2, 1), group)")),
        "over budget backward",
    ),
    "single precision": (loss((RETURN, f"({RETURN}).float()")), "not a loss"),
    "a number for each token": (loss((RETURN, "(y - target).square()")), "not a loss"),
    "in place": (
        loss(("    y = ", "    table.data *= 2\n    table = table / 2\n    y = ")),
        "input changed",
    ),
    "the notebook's rank": (
        loss(("group.size(), group.rank()", "group.size(), min(rank, group.size() - 1)")),
        "not of the group",
    ),
    "nothing": (loss(("    return ", "    ")), "nothing returned"),
    "the first step remembered": (
        loss(
            ("def uneven", "first = {}\n\n\ndef uneven"),
            ("    start", "    table = first.setdefault(group, table)\n    start"),
        ),
        "another second step",
    ),
}  # fmt: skip
RIGHT = (LOSS, TWO_NUMBERS, IN_PLACE)
# f of pieces of the table that differ in length: its backward's all-reduces disagree.
TORN = loss(("copy(table, group)", "copy(table[: len(table) - group.rank()], group)"))


def judged(desk: Desk, source: str) -> frame.Verdict:
    return desk.check("uneven_loss", {"uneven_loss": source, "Copies": source})


def test_right_answers_are_right_whatever_their_style(desk):
    cells = nbformat.read(FOLDER / "uneven_loss.ipynb", as_version=4).cells
    ours = next(c.source for c in cells if "def uneven_loss" in c.source).split("\n", 1)[1]
    for source in (*RIGHT, ours):
        verdict = judged(desk, source)
        assert (verdict.outcome, verdict.points) == ("right", 3), str(verdict)


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG, first=("mean of means", "sum of means", "rank times its own", "tokens gathered")
    ),
)
def test_a_wrong_mean_is_refused_by_its_name(desk, mistake):
    source, name = WRONG[mistake]
    verdict = judged(desk, source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


def test_a_disagreement_in_the_backward_is_placed_there_once(desk):
    text = judged(desk, TORN).text
    assert "disagree" in text and text.count("in the backward") == 1, text
    assert "line 1" not in text


def test_what_breaks_costs_one_check(desk):
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("return 'loss'", "not a loss"),
        ("return torch.tensor(float('nan')).double()", "wrong loss"),
    ):
        verdict = judged(desk, f"def uneven_loss(a, b, c, d, e):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, LOSS).outcome == "right"


def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(desk):
    one = frame.find("uneven_loss")
    said = " ".join([*one.hints, one.when_right])
    said += " ".join(judged(desk, source).text for source, _ in list(WRONG.values())[:8])
    for piece in ("copy(table", "reduce(own", "sum(sizes[", "x.shape[0]"):
        assert piece not in said
