"""One trial of lesson 07's functions: logits, targets, the cut, and what torch makes of the whole.

The ranks and the judge make the same numbers from a seed; the judge alone computes with all of
them. Every rank's first and last word is a target, but where a rank is to have none.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.layout import span

STEPS, RATE, HIDDEN = 3, 0.3, 5
PLAIN, FAR, LOW, APART, SILENT = "plain", "far", "low", "apart", "silent"
# What every other token's logits have on top.
LIFTED = {FAR: (1e4, -1e4), LOW: (-1e5, 0.0), SILENT: (-1e5, 0.0)}


class Plan(NamedTuple):
    """What a trial is made of; small enough to be sent to a rank as text."""

    seed: int
    tokens: int
    words: int  # real ones
    rows: int  # with the padding
    kind: str = PLAIN  # where the logits lie
    ignore: int | None = None  # the label that is ignored
    ignored: str = ""  # which tokens are: "some" or "all"
    smoothing: float = 0.0
    padding: float = 0.0  # what the padding's logits have on top
    mean: bool = True  # over the tokens that count; else one loss a token


class Case:
    """The numbers of a plan, cut over n ranks, and the three steps of one process."""

    def __init__(self, plan: Plan, n: int):
        self.plan, self.n = plan, n
        made = torch.Generator().manual_seed(plan.seed)
        self.spans = [span(plan.rows, n, r) for r in range(n)]
        self.states = torch.randn(STEPS, plan.tokens, HIDDEN, generator=made, dtype=torch.float64)
        self.table = torch.randn(plan.rows, HIDDEN, generator=made, dtype=torch.float64)
        self.owed = torch.randn(STEPS, plan.tokens, generator=made, dtype=torch.float64)
        self.offset = self._offset()
        self.targets = torch.stack([self._targets(made) for _ in range(STEPS)])

    @property
    def sizes(self) -> dict[str, int]:
        """What a mean may be taken over, beside the ranks."""
        return {"tokens": self.plan.tokens, "entries": self.plan.words}

    @property
    def without_entries(self) -> list[int]:
        """The ranks that hold padding alone."""
        return [r for r, (a, _) in enumerate(self.spans) if a >= self.plan.words]

    def _offset(self) -> Tensor:
        """What is added to the logits of each row."""
        offset = torch.zeros(self.plan.rows, dtype=torch.float64)
        for r, (a, z) in enumerate(self.spans):
            if self.plan.kind == APART:
                offset[a:z] = 900.0 if r == self.n - 1 else -900.0
            elif self.plan.kind == SILENT and r == self.n - 1:
                offset[a:z] = -torch.inf
        offset[self.plan.words :] += self.plan.padding
        return offset

    def _targets(self, made: torch.Generator) -> Tensor:
        """Each rank's first and last word among them, in a random order; some ignored."""
        plan = self.plan
        heard = [(a, min(z, plan.words)) for a, z in self.spans if a < plan.words]
        if plan.kind in (FAR, SILENT):  # the last rank has no target at all
            heard = heard[:-1]
        edges = [word for a, z in heard for word in (a, z - 1)]
        rest = plan.tokens - len(edges)
        drawn = torch.randint(heard[-1][1], (rest,), generator=made)
        y = torch.cat((torch.tensor(edges), drawn))
        y = y[torch.randperm(plan.tokens, generator=made)]
        if plan.ignore is not None:
            y[y == plan.ignore] = (plan.ignore + 1) % plan.words
            y[slice(None) if plan.ignored == "all" else slice(1, None, 3)] = plan.ignore
        return y

    def logits(self, step: int, table: Tensor, rank: int | None = None) -> Tensor:
        """(t, rows), or a rank's own."""
        a, z = (0, self.plan.rows) if rank is None else self.spans[rank]
        high, low = LIFTED.get(self.plan.kind, (0.0, 0.0))
        lift = torch.where(torch.arange(self.plan.tokens) % 2 == 0, high, low).double()
        return self.states[step] @ table.t() + self.offset[a:z] + lift[:, None]

    @cached_property
    def steps(self) -> list[tuple[Tensor, Tensor]]:
        """Of one process: loss and gradient of all logits, (t, rows), at each step."""
        plan, table, found = self.plan, self.table, []
        for step in range(STEPS):
            leaf = self.logits(step, table).requires_grad_()
            losses = F.cross_entropy(
                leaf[:, : plan.words],
                self.targets[step],
                reduction="none",
                ignore_index=-100 if plan.ignore is None else plan.ignore,
                label_smoothing=plan.smoothing,
            )
            weight = self.weight(step)
            (gradient,) = torch.autograd.grad(losses, leaf, weight)
            loss = (losses * weight).sum() if plan.mean else losses
            found.append((loss.detach(), gradient))
            table = table - RATE * gradient.t() @ self.states[step]
        return found

    def kept(self, step: int) -> Tensor:
        """(t,): which tokens count."""
        y = self.targets[step]
        return torch.ones_like(y, dtype=torch.bool) if self.plan.ignore is None else (
            y != self.plan.ignore
        )  # fmt: skip

    def weight(self, step: int) -> Tensor:
        """(t,): what the gradient of each token's loss is multiplied by."""
        kept = self.kept(step)
        scale = 1 / kept.sum().clamp(min=1).double() if self.plan.mean else self.owed[step]
        return kept * scale
