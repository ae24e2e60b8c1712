"""`uneven_loss` of lesson 06: positions and a mean over pieces of several lengths, one of them 0.

Declared: the interface, one process, lengths that do not divide, what each wrong idea about the
mean or the positions gives, and a budget of messages and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.layer_looks import Declared
from course_lib.classroom.checks.layers import Layer, Seen, Use
from course_lib.classroom.checks.looking import ITEM, THREE, TWO, counted
from course_lib.classroom.checks.words import Page
from course_lib.layout import cut, span
from course_lib.ledger import forms

SAYS = Page("lesson_06/uneven_loss")


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
    """The table is longer than the sequence, and than n times the longest piece of it."""
    return {"b": b, "s": s, "h": 10, "longest": 11}


def errors(c: Seen, starts: Sequence[int]) -> list[Tensor]:
    """Of each rank's tokens, where its first one is taken to stand at `starts[rank]`."""
    found = []
    for rank, start in enumerate(starts):
        x, table, target = c.shards(rank)
        rows = torch.arange(start, start + x.shape[1]) % c.sizes["longest"]
        found.append((x + table[rows] - target).square())
    return found


def losses(c: Seen) -> Iterator[tuple[str, list]]:
    """What wrong ideas about the value give on every rank."""
    n, s, each = c.n, c.sizes["s"], c.sizes["b"] * c.sizes["h"]
    tokens, count = cut(s, n), s * each
    outs = [report["out"] for report in c.reports]
    if 0 in tokens and any(map(torch.isnan, outs)):
        yield "no tokens", outs
    right = [sum(tokens[:rank]) for rank in c.ranks]
    sums = [float(error.sum()) for error in errors(c, right)]
    means = [total / max(1, t * each) for total, t in zip(sums, tokens, strict=True)]
    yield "own mean", means
    yield "own share", [total / count for total in sums]
    yield "mean of means", [sum(means) / n] * n
    yield "its own count #1", [sum(sums) / max(1, t * each) for t in tokens]
    yield "padding counted", [sum(sums) / max(1, n * max(tokens) * each)] * n
    yield "its own count #2", [sum(sums) / max(1, n * t * each) for t in tokens]
    yield "the table's length", [sum(sums) / each / c.sizes["longest"]] * n
    yield "sum of means", [sum(means)] * n
    yield "sum", [sum(sums)] * n
    yield "divided by n", [sum(sums) / count / n] * n
    for entry, starts in {
        "from 0 everywhere": [0] * n,
        "places as if it divided #1": [r * tokens[r] for r in c.ranks],
        "places as if it divided #2": [r * (s // n) for r in c.ranks],
        "balanced for cut": [r * (s // n) + min(r, s % n) for r in c.ranks],
        "the table cut": [span(c.sizes["longest"], n, r)[0] for r in c.ranks],
    }.items():
        if starts != right:
            yield entry, [sum(float(error.sum()) for error in errors(c, starts)) / count] * n


def of_own_tokens(c: Seen, name: str) -> list[Tensor]:
    """The table's gradient from each rank's own tokens."""
    found, start = [], 0
    for part in c.gradients("x"):
        found.append(torch.zeros_like(c.inputs[1]))
        found[-1][start : start + part.shape[1]] = part.sum(0)
        start += part.shape[1]
    return found


def look_at_traffic(c: Seen) -> None:
    """One small message forward, one sum of the table backward."""
    two = forms.all_reduce(c.n, 2 * ITEM)
    table = forms.all_reduce(c.n, c.sizes["longest"] * c.sizes["h"] * ITEM)
    for rank, report in enumerate(c.reports):
        forward, backward = report["forward"], report["backward"]
        sent = counted(forward["ops"])
        head = f"Values are right. Rank {rank} sends {sent} forward, {c.when}."
        if forward["bytes"] > two:
            raise SAYS("tokens on the way", head=head, bytes=forward["bytes"])
        if sum(forward["ops"].values()) > 1:
            raise SAYS("two messages", head=head)
        messages = sum(backward["ops"].values())
        if backward["bytes"] > table or messages > 1:
            about = {"bytes": backward["bytes"], "messages": messages, "table": table}
            raise SAYS("over budget backward", head=head, **about)


UNEVEN_LOSS = Exercise(
    judge=Declared(
        module=__name__,
        layer=LAYER,
        says=SAYS,
        owed="the mean over all tokens",
        cases=lambda seed: [(THREE, sizes(7)), (TWO, sizes(5)), (THREE, sizes(2))],
        uses=(
            Use(sizes(7)),
            Use(sizes(7)),
            Use(sizes(5, b=3), alone=True),
        ),
        outputs=losses,
        gradients=(
            ("n times the gradient", "x", lambda c, name: [c.n * g for g in c.gradients(name)]),
            ("gradient divided by n", "x", lambda c, name: [g / c.n for g in c.gradients(name)]),
            ("the table's debt", "table", of_own_tokens),
            ("the table's mean", "table", lambda c, name: [g / c.n for g in c.gradients(name)]),
            ("wrong table #1", "table", lambda c, name: [c.n * g for g in c.gradients(name)]),
        ),
        budget=look_at_traffic,
        means={"sequences": "b", "tokens": "s", "elements of a token": "h"},
        named={
            "wrong shape": "not a loss",
            "wrong output": "wrong loss",
            "wrong gradient of table": "wrong table #2",
            "two at once": "another second step",
        },
        outside="the backward",
    ).judge,
    **SAYS.about,
)
