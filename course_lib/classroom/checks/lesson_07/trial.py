"""What runs on the judge's ranks round the functions of lesson 07: three steps of training a table.

A function by hand returns a loss and a gradient; the last one returns losses with a history. Noted
is what came back, what was sent, the largest tensor that was made, and what stayed alive.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_07.case import RATE, STEPS, Case, Plan
from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group
from course_lib.ledger import ledger


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
    """Call `function(logits, targets, start, *extras, group)` in three steps."""
    rank, case = group.rank(), Case(plan, group.size())
    a, z = case.spans[rank]
    table, steps, gradients = case.table[a:z], [], []
    for step in range(STEPS):
        logits, targets = case.logits(step, table, rank), case.targets[step].clone()
        call = _called(lambda x=logits, y=targets: function(x, y, a, *extras, group))
        with torch.no_grad():
            report = _looked_at(call, logits, targets)
        out = report.pop("out")
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

    In the first step once more, after another use: what one use keeps is its own.
    """
    rank, case = group.rank(), Case(plan, group.size())
    a, z = case.spans[rank]
    table, steps = case.table[a:z], []
    for step in range(STEPS):
        leaf, targets = case.logits(step, table, rank).requires_grad_(), case.targets[step].clone()
        call = _called(lambda x=leaf, y=targets: function(x, y, a, group))
        report = _looked_at(call, leaf, targets)
        out = report.pop("out")
        report |= {"gradient": None, "again": None, "back": None, "loss": None, "reused": False}
        back = _back_from(out, leaf, case.owed[step])
        if isinstance(out, Tensor) and out.shape == targets.shape and out.dtype == leaf.dtype:
            report["loss"] = out.detach().clone()
            report |= _back(back) if out.requires_grad else {}
        steps.append(report)
        if not _everywhere(report["gradient"] is not None, group):
            break
        first = report.pop("first")
        if not step:
            other = (0.5 * leaf.detach().flip(0)).requires_grad_()
            found, _ = bench.watched(lambda x=other, y=targets: function(x, y.flip(0), a, group))
            _again(_back_from(found, other, case.owed[1]))
            report["reused"] = not torch.equal(first, report["gradient"])
            report["later"] = _again(back)
        table = table - RATE * report["gradient"].t() @ case.states[step]
    return {**steps[0], "steps": steps}


def _everywhere(fine: bool, group: Group) -> bool:
    """Whether it is so on all ranks: none may go on alone, or it would wait for the others."""
    return bool(all_reduce(torch.tensor(int(fine)), group, "min"))


def _called(action: Callable[[], object]) -> Callable[[], tuple[object, Made, list]]:
    def call():
        with ledger() as book, Made() as made:
            out = action()
        return out, made, [(record.op, record.elements) for record in book.records]

    return call


def _looked_at(call: Callable, logits: Tensor, targets: Tensor) -> dict:
    before = logits.detach().clone(), targets.clone()
    (out, made, sent), facts = bench.watched(call)
    changed = not all(map(torch.equal, before, (logits.detach(), targets)))
    return {
        "out": out,
        **bench.described(out),
        "largest": made.largest(),
        "held": made.alive([out, logits, targets]),
        "sent": sent,
        "ops": facts["ops"],
        "bytes": facts["bytes"],
        "changed": changed,
    }


def _pair(out: object, logits: Tensor) -> dict:
    """A loss and a gradient, where they are what they should be; and what they are if not."""
    found = {"parts": None, "loss": None, "gradient": None, "shape": None, "dtype": None}
    found["narrow"] = False
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        return found
    loss, gradient = out
    found["parts"] = [type(one).__name__ for one in out]
    if bench.number(loss) is not None:
        found["loss"] = torch.tensor(bench.number(loss), dtype=torch.float64)
    found["narrow"] = isinstance(loss, Tensor) and loss.dtype == torch.float32
    shape = bench.described(gradient)
    found["shape"], found["dtype"] = shape["shape"], shape["dtype"] or shape["kind"]
    plain = bench.plain(gradient)
    if plain and gradient.shape == logits.shape and gradient.dtype == logits.dtype:
        found["gradient"] = gradient.detach().clone()
    return found


def _back_from(out: Tensor, leaf: Tensor, owed: Tensor) -> Callable[[], Tensor | None]:
    return lambda: torch.autograd.grad(out, leaf, owed, retain_graph=True, allow_unused=True)[0]


def _back(once: Callable[[], Tensor | None]) -> dict:
    """The gradient of the logits, twice, and what was sent for it."""
    first, facts = bench.watched(once)
    if first is None:
        return {}
    gradient = first.clone()
    return {"first": first, "gradient": gradient, "back": facts["ops"], "again": _again(once)}


def _again(once: Callable) -> Tensor | None:
    try:
        return bench.watched(once)[0].clone()
    except Exception:  # what was kept has been changed or is gone, whatever says so
        return None
