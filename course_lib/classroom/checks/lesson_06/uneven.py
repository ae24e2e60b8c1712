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
from course_lib.classroom.checks.words import Words
from course_lib.layout import cut, span
from course_lib.ledger import forms

SAYS = Words("""
not a loss: Rank {rank} got {got} back {when}; expected is a {dtype} tensor with one number in it.
no tokens: A rank has no token there, and the mean of nothing is NaN. Divide once, by what all ranks
  have together.
own mean: Each rank has the mean over its own tokens. Wanted is one number, over all.
own share: Each rank has its own tokens' share of the mean. The shares have to be added up.
mean of means: That is the mean of the ranks' means. A token of a rank with few then counts more
  than one of a rank with many.
its own count #1: The sum over all tokens was divided by the count of a rank's own.
padding counted: The sum was divided as if every rank had as many tokens as the first.
its own count #2: The sum was divided as if every rank had as many tokens as this one.
the table's length: The sum was divided by the table's length. It is longer than the sequence.
sum of means: The ranks' means were added up.
sum: That is the sum over all tokens, not their mean.
divided by n: The mean over all tokens was divided by {n} again.
from 0 everywhere: Every rank took positions from 0 on.
places as if it divided #1: Rank r took its first token to stand at r times its own number of
  tokens. The ranks before it may have more.
places as if it divided #2: Rank r took its first token to stand at r·(s // n). The first ranks have
  more tokens than that.
balanced for cut: Positions were counted as if tokens were spread evenly. `course_lib.layout.cut`
  fills the first ranks.
the table cut: The table was cut over the ranks by its own length. It is longer than the sequence: a
  position is a place in the sequence.
wrong loss: That is not the mean over all tokens, {when}.
no way back: The loss is right on rank {rank}, and no gradient finds back from it, {when}. A plain
  sum over the ranks keeps no graph; g of lesson 03 does.
n times the gradient: It is {n} times too large. The sum's backward has summed once more: every rank
  starts its backward from the same loss, and each summand's gradient is that of the sum.
gradient divided by n: It is divided by {n}. The value is a mean over tokens, and no mean over
  ranks.
the table's debt: Each rank has the gradient of the rows that its own tokens read, and zeros in the
  others. The table is replicated: after the first step its copies differ.
the table's mean: It is divided by {n}: the ranks' parts of it add up, and are no estimates of one
  number.
wrong table #1: It is {n} times what it should be: the sum of all ranks' rows was summed once more.
wrong table #2: It is not that of one process.
another second step: One call after the other comes out right. Several that are alive at once, of
  which one has a group of its own, do not. Does your function keep something between calls?

  {what}
tokens on the way: {head} That is {bytes} bytes for a mean. Which number does another rank need of
  all your tokens?
two messages: {head} One will do: what each rank knows about the lengths need not be sent, and
  elements that are sent may travel together.
over budget backward: {head} Backward it sends {bytes} bytes in {messages} messages; one sum of the
  table's gradient is {table:g} bytes.
""")


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
    name="uneven_loss",
    title="A length that does not divide",
    points=3,
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
    when_right=(
        "Every token stood at its own position and counted once, on whichever rank it was; a rank "
        "without tokens gave a zero to the sum and no NaN. Gradients and two steps of training "
        "were those of one process, for one small message forward and the table's sum backward."
    ),
    hints=(
        "`course_lib.layout.cut(length, n)` says how many tokens each rank has. Where does yours "
        "begin? (`span` says it too.)",
        "A mean is a sum divided by a count. Which of the two can every rank work out alone? "
        "Then one element in the message is enough.",
        "Summing over the ranks in the forward: what is the gradient of one summand? Lesson 03 has "
        "the pair whose backward sends nothing.",
        "The table is a copy on every rank, and each rank reads other rows of it. Which pair "
        "stands before a copy that takes part in different work?",
    ),
)
