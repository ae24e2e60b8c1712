"""One process beside the ranks of `uneven_loss`, and what wrong ideas about the mean would give.

Each wrong idea is computed and compared, never guessed. Lesson 06.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from course_lib.classroom.checks.lesson_06 import uneven_trial as trial
from course_lib.classroom.checks.looking import Idea
from course_lib.layout import cut, span


class Trial:
    """Two steps of the learner's function on a group, beside one process."""

    def __init__(self, reports: list[dict], sizes: trial.Sizes, seed: int, when: str):
        self.reports, self.sizes, self.when = reports, sizes, when
        self.n = len(reports)
        self.tokens = cut(sizes.s, self.n)
        self.dense = trial.numbers(sizes, seed)

    def errors(self, starts: list[int]) -> list[Tensor]:
        """Of each rank's tokens, where its first one is taken to stand at `starts[rank]`."""
        x, target = (t[0].split(self.tokens, 1) for t in (self.dense.xs, self.dense.targets))
        rows = [
            torch.arange(a, a + t) % self.sizes.longest
            for a, t in zip(starts, self.tokens, strict=True)
        ]
        return [(x[r] + self.dense.table[own] - target[r]).square() for r, own in enumerate(rows)]

    @cached_property
    def starts(self) -> list[int]:
        return [sum(self.tokens[:r]) for r in range(self.n)]

    @cached_property
    def steps(self) -> list[tuple[float, Tensor, Tensor]]:
        """Of one process, for each step: the loss and the gradients of x and the table."""
        table, found = self.dense.table, []
        for x, target in zip(self.dense.xs, self.dense.targets, strict=True):
            leaves = [t.clone().requires_grad_() for t in (x, table)]
            loss = (leaves[0] + leaves[1][: x.shape[1]] - target).square().mean()
            loss.backward()
            found.append((loss.item(), leaves[0].grad, leaves[1].grad))
            table = table - trial.RATE * leaves[1].grad
        return found


def losses(one: Trial) -> Iterator[Idea]:
    """Wrong ideas about the value, and what each would give on every rank."""
    n, count = one.n, one.sizes.b * one.sizes.s * one.sizes.h
    sums = [float(e.sum()) for e in one.errors(one.starts)]
    counts = [one.sizes.b * t * one.sizes.h for t in one.tokens]
    means = [total / max(1, many) for total, many in zip(sums, counts, strict=True)]
    yield Idea(
        "own mean",
        "Each rank has the mean over its own tokens. Wanted is one number, over all.",
        means,
    )
    yield Idea(
        "own share",
        "Each rank has its own tokens' share of the mean. The shares have to be added up.",
        [total / count for total in sums],
    )
    yield Idea(
        "mean of means",
        "That is the mean of the ranks' means. A token of a rank with few then counts more than "
        "one of a rank with many.",
        [sum(means) / n] * n,
    )
    yield Idea(
        "its own count",
        "The sum over all tokens was divided by the count of a rank's own.",
        [sum(sums) / max(1, many) for many in counts],
    )
    for name, text, tokens in (
        (
            "padding counted",
            "The sum was divided as if every rank had as many tokens as the first.",
            [max(one.tokens)] * n,
        ),
        (
            "its own count",
            "The sum was divided as if every rank had as many tokens as this one.",
            one.tokens,
        ),
    ):
        all_of_them = [n * one.sizes.b * t * one.sizes.h for t in tokens]
        yield Idea(name, text, [sum(sums) / max(1, many) for many in all_of_them])
    yield Idea("sum of means", "The ranks' means were added up.", [sum(means)] * n)
    yield Idea("sum", "That is the sum over all tokens, not their mean.", [sum(sums)] * n)
    yield Idea(
        "divided by n",
        f"The mean over all tokens was divided by {n} again.",
        [sum(sums) / count / n] * n,
    )
    for name, text, starts in (
        ("from 0 everywhere", "Every rank took positions from 0 on.", [0] * n),
        (
            "places as if it divided",
            "Rank r took its first token to stand at r times its own number of tokens. The ranks "
            "before it may have more.",
            [r * one.tokens[r] for r in range(n)],
        ),
        (
            "places as if it divided",
            "Rank r took its first token to stand at r·(s // n). The first ranks have more tokens "
            "than that.",
            [r * (one.sizes.s // n) for r in range(n)],
        ),
        (
            "balanced for cut",
            "Positions were counted as if tokens were spread evenly. `course_lib.layout.cut` fills "
            "the first ranks.",
            [r * (one.sizes.s // n) + min(r, one.sizes.s % n) for r in range(n)],
        ),
        (
            "the table cut",
            "The table was cut over the ranks by its own length. It is longer than the sequence: "
            "a position is a place in the sequence.",
            [span(one.sizes.longest, n, r)[0] for r in range(n)],
        ),
    ):
        if starts != one.starts:
            value = sum(float(e.sum()) for e in one.errors(starts)) / count
            yield Idea(name, text, [value] * n)
