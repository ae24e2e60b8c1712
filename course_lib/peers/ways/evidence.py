"""The evidence of a way: the class it trains, the bytes it holds, the verbs it calls.

A name in a config proves nothing, but a sharded tensor is smaller on each rank. Lesson 13.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from course_lib.ledger import Book
from course_lib.memory import held
from course_lib.memory.storages import alive

KINDS = ("parameters", "master weights", "optimizer states", "gradients", "buffers", "other")
SMALL = 512  # bytes of an all-reduce: norms of parameters, flags


@dataclass(frozen=True)
class Evidence:
    """One rank's evidence about one way after its last step. It can be sent to other ranks."""

    trains: str  # class of the object whose forward is called
    optimizer: str  # class of the object that updates
    held: dict[str, int]  # bytes by kind, on the device, the host and in hidden buffers
    must: dict[str, float]  # bytes that this rank must send in the last step, by verb
    calls: dict[str, int]  # number of calls, by verb

    @property
    def held_bytes(self) -> int:
        return sum(self.held.values())

    @property
    def must_bytes(self) -> float:
        return sum(self.must.values())


@dataclass(frozen=True)
class RunEvidence:
    """A run in one way: losses and norms of each step over all ranks, and the evidence."""

    way: str
    losses: list[float]
    norms: list[float]  # before clipping; empty if a way does not report them
    evidence: Evidence
    notes: list[str] = field(default_factory=list)


class Before(list):
    """The storages that existed before a way began, kept alive so that no later tensor can reuse
    their addresses. All later storages belong to the way."""

    def __init__(self) -> None:
        super().__init__(alive())


def held_by(
    before: Before,
    model: nn.Module,
    optimizer: Optimizer,
    kinds: Mapping[str, Iterable] | None = None,
) -> dict[str, int]:
    """Count the bytes that a way holds between two steps: each storage once, by its first kind.

    `kinds` adds tensors that neither the model nor the optimizer shows, such as shards behind
    placeholders, or masters in an engine's list. "Master weights" are updated by the optimizer but
    are not in the model; "other" is everything else that is alive, such as buckets and copies.
    """
    gc.collect()
    updated = [p for group in optimizer.param_groups for p in group["params"]]
    trained = list(model.parameters())
    states = [state for entry in optimizer.state.values() for state in entry.values()]
    groups = {
        "before": before,
        "parameters": trained,
        "master weights": updated,
        # a step counter of 4 bytes is "other"
        "optimizer states": [state for state in states if getattr(state, "ndim", 0)],
        "gradients": [p.grad for p in (*trained, *updated) if p.grad is not None],
        "buffers": list(model.buffers()),
        "other": alive(),
    }
    for kind, tensors in (kinds or {}).items():
        groups[kind] = [*groups[kind], *tensors]
    nbytes = held(kinds=groups).by_kind
    return {kind: nbytes.get(kind, 0) for kind in KINDS}


def traffic(book: Book) -> dict[str, dict]:
    """Compute `must` and `calls` of `Evidence` from a book; norms and flags are left out."""
    must: dict[str, float] = {}
    calls: dict[str, int] = {}
    for record in book.records:
        if record.op != "all_reduce" or record.payload > SMALL:
            must[record.op] = must.get(record.op, 0) + record.must
            calls[record.op] = calls.get(record.op, 0) + 1
    return {"must": must, "calls": calls}
