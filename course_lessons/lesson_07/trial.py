"""Trials of lesson 07's functions: logits, targets, torch's result for full logits, and the run.

Ranks and judge draw the same numbers from a seed, but only the judge uses all of them. The ranks
train a table for three steps with the answer's results. Results, traffic and memory are recorded.
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
TOKENS = (18, 30)  # divisible by 2 and 3, so a budget is an integer; no shard is as wide
PLAIN, FAR, LOW, APART, SILENT = "plain", "far", "low", "apart", "silent"
# Added to every other token's logits.
LIFTED = {FAR: (1e4, -1e4), LOW: (-1e5, 0.0), SILENT: (-1e5, 0.0)}


class Plan(NamedTuple):
    """The parameters of a trial, which are small enough to be sent to a rank as text."""

    seed: int
    tokens: int
    words: int  # without the padding
    rows: int  # with the padding
    kind: str = PLAIN  # the range of the logits
    ignore: int | None = None  # the ignored label
    ignored: str = ""  # which tokens are ignored: "some", "all" or "but one"
    smoothing: float = 0.0
    padding: float = 0.0  # added to the padding's logits
    mean: bool = True  # over the tokens that count; otherwise one loss per token


class Case:
    """The numbers of a plan, sharded over n ranks, and one process's results in three steps."""

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
        # factor on the gradient of each token's loss
        self.weight = self.kept * (1 / count if plan.mean else self.owed)
        self.without_entries = [r for r, (a, _) in enumerate(self.spans) if a >= plan.words]

    def _targets(self, made: torch.Generator) -> Tensor:
        """Draw targets with each rank's first and last word, in random order; some are ignored."""
        plan = self.plan
        heard = [(a, min(z, plan.words)) for a, z in self.spans if a < plan.words]
        if plan.kind in (FAR, SILENT):  # the last rank has no targets
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
        """Return the logits (t, rows), or only a rank's shard of them."""
        a, z = (0, self.plan.rows) if rank is None else self.spans[rank]
        high, low = LIFTED.get(self.plan.kind, (0.0, 0.0))
        lift = torch.where(torch.arange(self.plan.tokens) % 2 == 0, high, low).double()
        return self.states[step] @ table.t() + self.offset[a:z] + lift[:, None]

    @cached_property
    def steps(self) -> list[tuple[Tensor, Tensor]]:
        """Return the loss and the logits' gradient (t, rows) of one process at each step."""
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
    """A recorder of every new tensor's memory, for the largest and the remaining tensors."""

    def largest(self) -> int:
        return max((life.nbytes for life in self.lives()), default=0)

    def held_but_for(self, but: list[object]) -> int:
        known = {one.untyped_storage()._cdata for one in but if isinstance(one, Tensor)}
        return sum(one.nbytes() for one in self.made_and_alive() if one._cdata not in known)


def warm() -> None:
    """Load in advance the code that torch would load at the first backward pass or inspection."""
    with Made():
        torch.ones(2, requires_grad=True).exp().sum().backward()


def run(function: Callable, group: Group, plan: Plan, extras: tuple | None) -> dict:
    """Call `function(logits, targets, start, *extras, group)` in three steps of training.

    `extras` are fields of the plan, or None if the losses have an autograd history. Then the
    backward pass runs twice, and in the first step again after a second call with tokens and shards
    in reverse order, because each call must keep its own state.
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
    """Call `function`; return its result and the facts about the call."""
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
    """Return loss and gradient if they are well formed, with a description of the result."""
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
    """Return the losses, if there is one per token, and the gradients of two backward passes."""
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
    except Exception:  # any error because saved tensors were changed or freed
        return None
