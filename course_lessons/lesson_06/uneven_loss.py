"""`uneven_loss` of lesson 06: positions and a mean over pieces of unequal lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from course_classroom.judge.frame import Exercise
from course_classroom.judge.layer_looks import Declared
from course_classroom.judge.layers import Layer, Seen, Use
from course_classroom.judge.looking import ITEM, THREE, TWO, counted
from course_classroom.judge.words import Page
from course_lessons.lesson_06.sequence_mlp import times
from course_lib.layout import cut, span
from course_lib.ledger import forms

SAYS = Page(__file__, "uneven_loss")


def mean_square(x: Tensor, table: Tensor, target: Tensor) -> Tensor:
    return (x + table[: x.shape[1]] - target).square().mean()


LAYER = Layer(
    text="x[b, s@tp, h] table[longest, h] target[b, s@tp, h] -> loss[]",
    dense=mean_square,
    fixed=("target",),
    grows={"s": 1},
    also=lambda sizes, n: (sizes["s"],),
    rate=0.3,
)


def sizes(s: int, b: int = 4) -> dict[str, int]:
    """Return sizes with a table longer than the sequence and than n times its longest piece."""
    return {"b": b, "s": s, "h": 10, "longest": 11}


def sums(c: Seen, starts: Sequence[int]) -> list[float]:
    """Sum the errors of each rank's tokens if their positions begin at the rank's start."""
    found = []
    for rank, start in enumerate(starts):
        x, table, target = c.shards(rank)
        rows = torch.arange(start, start + x.shape[1]) % c.sizes["longest"]
        found.append(float((x + table[rows] - target).square().sum()))
    return found


def losses(c: Seen) -> Iterator[tuple[str, list]]:
    """Yield the values of wrong ideas on every rank."""
    n, s, each = c.n, c.sizes["s"], c.sizes["b"] * c.sizes["h"]
    tokens, count = cut(s, n), s * each
    outs = [report["out"] for report in c.reports]
    if 0 in tokens and any(map(torch.isnan, outs)):
        yield "no tokens", outs
    right = [sum(tokens[:rank]) for rank in c.ranks]
    parts = sums(c, right)
    means = [part / max(1, t * each) for part, t in zip(parts, tokens, strict=True)]
    yield "own mean", means
    yield "own share", [part / count for part in parts]
    for entry, loss in {
        "mean of means": sum(means) / n,
        "padding counted": sum(parts) / max(1, n * max(tokens) * each),
        "the table's length": sum(parts) / each / c.sizes["longest"],
        "sum of means": sum(means),
        "sum": sum(parts),
        "divided by n": sum(parts) / count / n,
    }.items():
        yield entry, [loss] * n
    for many in (1, n):
        yield "its own count", [sum(parts) / max(1, many * t * each) for t in tokens]
    for entry, starts in (
        ("from 0 everywhere", [0] * n),
        ("places as if it divided", [r * tokens[r] for r in c.ranks]),
        ("places as if it divided", [r * (s // n) for r in c.ranks]),
        ("even spread assumed", [r * (s // n) + min(r, s % n) for r in c.ranks]),
        ("table sharded", [span(c.sizes["longest"], n, r)[0] for r in c.ranks]),
    ):
        if starts != right:
            yield entry, [sum(sums(c, starts)) / count] * n


def of_own_tokens(c: Seen, name: str) -> list[Tensor]:
    """Return the table's gradient that comes only from each rank's own tokens."""
    found, start = [], 0
    for part in c.gradients("x"):
        found.append(torch.zeros_like(c.inputs[1]))
        found[-1][start : start + part.shape[1]] = part.sum(0)
        start += part.shape[1]
    return found


def look_at_traffic(c: Seen) -> None:
    """Check that there is one small message forward and one sum of the table backward."""
    two = forms.all_reduce(c.n, 2 * ITEM)
    table = forms.all_reduce(c.n, c.sizes["longest"] * c.sizes["h"] * ITEM)
    for rank, report in enumerate(c.reports):
        forward, backward = report["forward"], report["backward"]
        messages = sum(backward["ops"].values())
        holds = {
            "tokens on the way": forward["bytes"] > two,
            "two messages": sum(forward["ops"].values()) > 1,
            "over budget backward": backward["bytes"] > table or messages > 1,
        }
        about = {"rank": rank, "sent": counted(forward["ops"]), "messages": messages}
        about |= {"forward": forward["bytes"], "backward": backward["bytes"], "table": table}
        SAYS.refuse(holds, when=c.when, **about)


UNEVEN_LOSS = Exercise(
    judge=Declared(
        module=__name__,
        layer=LAYER,
        says=SAYS,
        owed="the mean over all tokens",
        cases=lambda seed: [(THREE, sizes(7)), (TWO, sizes(5)), (THREE, sizes(2))],
        uses=(Use(sizes(7)), Use(sizes(7)), Use(sizes(5, b=3), alone=True)),
        outputs=losses,
        gradients=(
            ("n times the gradient", "x", times(lambda n: n)),
            ("gradient divided by n", "x", times(lambda n: 1 / n)),
            ("table gradient not summed", "table", of_own_tokens),
            ("the table's mean", "table", times(lambda n: 1 / n)),
            ("wrong table #1", "table", times(lambda n: n)),
        ),
        budget=look_at_traffic,
        means={"sequences": "b", "tokens": "s", "elements of a token": "h"},
        named={
            "wrong shape": "not a loss",
            "wrong output": "wrong loss",
            "wrong gradient of table": "wrong table #2",
            "several calls at once": "wrong second step",
        },
        outside="the backward",
    ).judge,
    **SAYS.about,
)
