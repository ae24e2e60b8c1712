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
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from course_lib.classroom.checks import bench
from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group
from course_lib.layout import span
from course_lib.ledger import ledger

STEPS, RATE, HIDDEN = 3, 0.3, 5
TOKENS = 18  # divides by 2 and 3, so that a budget is a whole number; as wide as no shard
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
        self.offset = self._offset()
        self.targets = torch.stack([self._targets(made) for _ in range(STEPS)])

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
            weight = self.weight(step)
            (gradient,) = torch.autograd.grad(losses, leaf, weight)
            loss = (losses * weight).sum() if plan.mean else losses
            found.append((loss.detach(), gradient))
            table = table - RATE * gradient.t() @ self.states[step]
        return found

    def kept(self, step: int) -> Tensor:
        """(t,): which tokens count."""
        y = self.targets[step]
        return y != (-1 if self.plan.ignore is None else self.plan.ignore)

    def weight(self, step: int) -> Tensor:
        """(t,): what the gradient of each token's loss is multiplied by."""
        kept = self.kept(step)
        scale = 1 / kept.sum().clamp(min=1).double() if self.plan.mean else self.owed[step]
        return kept * scale


class Made(TorchDispatchMode):
    """Notes the memory of every tensor that comes into being: the largest, and what stays."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in tree_iter(out):
            if bench.plain(one):
                storage = one.untyped_storage()
                self.seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def largest(self) -> int:
        return max((nbytes for _, nbytes in self.seen.values()), default=0)

    def alive(self, but: list[object]) -> int:
        """Bytes that are still held, but for the memory of these tensors."""
        known = {one.untyped_storage()._cdata for one in but if isinstance(one, Tensor)}
        held = [n for key, (ref, n) in self.seen.items() if key not in known and not ref.expired()]
        return sum(held)


def warm() -> None:
    """Load what torch loads at its first backward, and what a look at it takes."""
    with Made():
        torch.ones(2, requires_grad=True).exp().sum().backward()


def by_hand(function: Callable, group: Group, plan: Plan, extras: tuple) -> dict:
    """Call `function(logits, targets, start, *extras, group)` in three steps of training."""
    rank, case = group.rank(), Case(plan, group.size())
    a, z = case.spans[rank]
    more = [getattr(plan, field) for field in extras]
    table, steps, gradients = case.table[a:z], [], []
    for step in range(STEPS):
        logits, targets = case.logits(step, table, rank), case.targets[step].clone()
        with torch.no_grad():
            out, report = _called(function, logits, targets, a, *more, group)
        report |= _pair(out, logits)
        steps.append(report)
        if not _everywhere(report["gradient"] is not None, group):
            break
        gradients.append((out[1], report["gradient"]))
        table = table - RATE * report["gradient"].t() @ case.states[step]
    reused = any(not torch.equal(now.detach(), then) for now, then in gradients)
    return {**steps[0], "steps": steps, "reused": reused}


def with_history(function: Callable, group: Group, plan: Plan) -> dict:
    """Call `function(logits, targets, start, group)`, and go back twice in every step.

    In the first step once more, after another use, with the tokens and the shards in the reverse
    order: what one use keeps is its own.
    """
    rank, case = group.rank(), Case(plan, group.size())
    a, z = case.spans[rank]
    table, steps = case.table[a:z], []
    for step in range(STEPS):
        leaf, targets = case.logits(step, table, rank).requires_grad_(), case.targets[step].clone()
        out, report = _called(function, leaf, targets, a, group)
        report |= {"gradient": None, "again": None, "loss": None, "reused": False}
        steps.append(report)
        back = _back_from(out, leaf, case.owed[step])
        if isinstance(out, Tensor) and out.shape == targets.shape and out.dtype == leaf.dtype:
            report["loss"] = out.detach().clone()
            first, facts = bench.watched(back) if out.requires_grad else (None, {})
            if first is not None:
                report |= {"gradient": first.clone(), "back": facts["ops"], "again": _again(back)}
        if not _everywhere(report["gradient"] is not None, group):
            break
        if not step:
            other = (0.5 * leaf.detach().flip(0)).requires_grad_()
            _called(function, other, targets.flip(0), plan.rows - z, group, back=case.owed[1])
            report["reused"] = not torch.equal(first, report["gradient"])
            report["later"] = _again(back)
        table = table - RATE * report["gradient"].t() @ case.states[step]
    return {**steps[0], "steps": steps}


def _everywhere(fine: bool, group: Group) -> bool:
    """Whether it is so on all ranks: none may go on alone, or it would wait for the others."""
    return bool(all_reduce(torch.tensor(int(fine)), group, "min"))


def _called(
    function: Callable, logits: Tensor, targets: Tensor, *args: object, back: Tensor | None = None
) -> tuple[object, dict]:
    """What `function` returned, and what it did on the way; then its backward, where one is asked
    for."""
    before = logits.detach().clone(), targets.clone()
    made = Made()

    def call() -> tuple[object, list]:
        with ledger() as book, made:
            out = function(logits, targets, *args)
        return out, [record.elements for record in book.records]

    (out, sent), facts = bench.watched(call)
    if back is not None:
        _again(_back_from(out, logits, back))
    changed = not all(map(torch.equal, before, (logits.detach(), targets)))
    return out, {
        **bench.described(out),
        "largest": made.largest(),
        "held": made.alive([out, logits, targets]),
        "sent": sent,
        "wanted": list(logits.shape),
        "ops": facts["ops"],
        "bytes": facts["bytes"],
        "changed": changed,
    }


def _pair(out: object, logits: Tensor) -> dict:
    """A loss and a gradient, where they are what they should be; and what they are if not."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        return {"pair": False, "loss": None, "gradient": None}
    loss, gradient = out
    number, shape = bench.number(loss), bench.described(gradient)
    fine = bench.plain(gradient) and gradient.shape == logits.shape
    fine = fine and gradient.dtype == logits.dtype
    return {
        "pair": True,
        "loss": None if number is None else torch.tensor(number, dtype=torch.float64),
        "narrow": isinstance(loss, Tensor) and loss.dtype == torch.float32,
        "gradient": gradient.detach().clone() if fine else None,
        "shape": shape["shape"],
        "dtype": shape["dtype"] or shape["kind"],
    }


def _back_from(out: object, leaf: Tensor, owed: Tensor) -> Callable[[], Tensor | None]:
    return lambda: torch.autograd.grad(out, leaf, owed, retain_graph=True, allow_unused=True)[0]


def _again(once: Callable) -> Tensor | None:
    try:
        return bench.watched(once)[0].clone()
    except Exception:  # what was kept has been changed or is gone, whatever says so
        return None
