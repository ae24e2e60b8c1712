"""One trial of lesson 07's functions: logits, targets, what torch makes of the whole, and the run.

The ranks and the judge make the same numbers from a seed; the judge alone computes with all of
them. On the ranks a table is trained for three steps by what the answer gives, and noted is what
came back, what was sent, the largest tensor that was made, and what stayed alive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_classroom.judge import bench
from course_classroom.judge.layers import agreed
from course_lib.collectives.call import Group
from course_lib.layout import span
from course_lib.ledger import ledger
from course_lib.memory.lifetimes import StorageWatch

STEPS, RATE, HIDDEN = 3, 0.3, 5
TOKENS = (18, 30)  # divide by 2 and 3, so that a budget is a whole number; as wide as no shard
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
    ignored: str = ""  # which tokens are: "some", "all" or "but one"
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
        self.offset = torch.zeros(plan.rows, dtype=torch.float64)  # added to the logits of each row
        a, z = self.spans[-1]
        if plan.kind == APART:
            self.offset[:a], self.offset[a:] = -900.0, 900.0
        elif plan.kind == SILENT:
            self.offset[a:z] = -torch.inf
        self.offset[plan.words :] += plan.padding
        self.targets = torch.stack([self._targets(made) for _ in range(STEPS)])  # (steps, t)
        self.kept = self.targets != (-1 if plan.ignore is None else plan.ignore)  # which count
        count = self.kept.sum(1, keepdim=True).clamp(min=1).double()
        # what the gradient of each token's loss is multiplied by
        self.weight = self.kept * (1 / count if plan.mean else self.owed)
        self.without_entries = [r for r, (a, _) in enumerate(self.spans) if a >= plan.words]

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
            which = {"all": slice(None), "but one": slice(1, None), "some": slice(1, None, 3)}
            y[which[plan.ignored]] = plan.ignore
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
            (gradient,) = torch.autograd.grad(losses, leaf, self.weight[step])
            loss = (losses * self.weight[step]).sum() if plan.mean else losses
            found.append((loss.detach(), gradient))
            table = table - RATE * gradient.t() @ self.states[step]
        return found


class Made(StorageWatch):
    """Notes the memory of every tensor that comes into being: the largest, and what stays."""

    def largest(self) -> int:
        return max((life.nbytes for life in self.lives()), default=0)

    def held_but_for(self, but: list[object]) -> int:
        known = {one.untyped_storage()._cdata for one in but if isinstance(one, Tensor)}
        return sum(one.nbytes() for one in self.made_and_alive() if one._cdata not in known)


def warm() -> None:
    """Load what torch loads at its first backward, and what a look at it takes."""
    with Made():
        torch.ones(2, requires_grad=True).exp().sum().backward()


def run(function: Callable, group: Group, plan: Plan, extras: tuple | None) -> dict:
    """Call `function(logits, targets, start, *extras, group)` in three steps of training.

    `extras` are fields of the plan. None of them is a function whose losses have a history: from
    these is gone back twice, and in the first step once more, after another use, with the tokens
    and the shards in the reverse order: what one use keeps is its own.
    """
    rank, case = group.rank(), Case(plan, group.size())
    a, z = case.spans[rank]
    more = [getattr(plan, field) for field in extras or ()]
    table, steps, results = case.table[a:z], [], []
    for step in range(STEPS):
        logits, targets = case.logits(step, table, rank), case.targets[step].clone()
        with torch.set_grad_enabled(extras is None):
            logits.requires_grad_(extras is None)
            out, report = _called(function, logits, targets, a, *more, group)
        back = _back_from(out, logits, case.owed[step])
        result = _gone_back(out, back, logits, targets) if extras is None else _pair(out, logits)
        gradient = result.pop("gradient")
        report |= {**result, "gradient": None if gradient is None else gradient.detach().clone()}
        steps.append(report)
        if not agreed(gradient is not None, group):
            break
        if extras is None and not step:
            other = (0.5 * logits.detach().flip(0)).requires_grad_()
            given = (other, targets.flip(0), plan.rows - z, group)
            found, _ = bench.watched(lambda given=given: function(*given))
            _again(_back_from(found, other, case.owed[1]))
            report["later"] = _again(back)
        results.append((gradient, report["gradient"]))
        table = table - RATE * report["gradient"].t() @ case.states[step]
    reused = any(not torch.equal(now.detach(), then) for now, then in results)
    return {**steps[0], "steps": steps, "reused": reused}


def _called(
    function: Callable, logits: Tensor, targets: Tensor, *args: object
) -> tuple[object, dict]:
    """What `function` returned, and what it did on the way."""
    before, made = (logits.detach().clone(), targets.clone()), Made(keep_dead=True)

    def call() -> tuple[object, list]:
        with ledger() as book, made:
            out = function(logits, targets, *args)
        return out, [record.elements for record in book.records]

    (out, sent), facts = bench.watched(call)
    return out, {
        **bench.described(out),
        "largest": made.largest(),
        "held": made.held_but_for([out, logits, targets]),
        "sent": sent,
        "wanted": list(logits.shape),
        "ops": facts["ops"],
        "bytes": facts["bytes"],
        "changed": not all(map(torch.equal, before, (logits.detach(), targets))),
    }


def _pair(out: object, logits: Tensor) -> dict:
    """A loss and a gradient, where they are what they should be; and what they are if not."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        return {"pair": False, "loss": None, "gradient": None}
    loss, gradient = out
    number, about = bench.number(loss), bench.described(gradient)
    fine = bench.plain(gradient) and gradient.shape == logits.shape
    return {
        "pair": True,
        "loss": None if number is None else torch.tensor(number, dtype=torch.float64),
        "narrow": isinstance(loss, Tensor) and loss.dtype == torch.float32,
        "gradient": gradient if fine and gradient.dtype == logits.dtype else None,
        "shape": about["shape"],
        "dtype": about["dtype"] or about["kind"],
    }


def _gone_back(out: object, back: Callable, logits: Tensor, targets: Tensor) -> dict:
    """Losses, where they are one for each token, and their gradient, twice."""
    if not isinstance(out, Tensor) or (out.shape, out.dtype) != (targets.shape, logits.dtype):
        return {"loss": None, "gradient": None}
    gradient, facts = bench.watched(back) if out.requires_grad else (None, {})
    return {
        "loss": out.detach().clone(),
        "gradient": gradient,
        "back": facts.get("ops"),
        "again": None if gradient is None else _again(back),
    }


def _back_from(out: object, leaf: Tensor, owed: Tensor) -> Callable[[], Tensor | None]:
    return lambda: torch.autograd.grad(out, leaf, owed, retain_graph=True, allow_unused=True)[0]


def _again(back: Callable) -> Tensor | None:
    try:
        return bench.watched(back)[0].clone()
    except Exception:  # what was kept has been changed or is gone, whatever says so
        return None
