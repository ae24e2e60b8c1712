"""What a way is, by what it does: the class it trains, the bytes it holds, the verbs it calls.

A name in a config proves nothing: what is sharded is smaller on each rank. Lesson 13.
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
    """One rank's findings about one way, after its last step. All of it can be sent to others."""

    trains: str  # class of what forward is called on
    optimizer: str  # class of what updates
    held: dict[str, int]  # bytes by kind, on the device, the host and in hidden buffers
    must: dict[str, float]  # bytes that this rank has to send in the last step, by verb
    calls: dict[str, int]  # how often, by verb

    @property
    def held_bytes(self) -> int:
        return sum(self.held.values())

    @property
    def must_bytes(self) -> float:
        return sum(self.must.values())


@dataclass(frozen=True)
class RunEvidence:
    """A training by one way: losses and norms of each step over all ranks, and the evidence."""

    way: str
    losses: list[float]
    norms: list[float]  # before clipping; empty where a way does not tell them
    evidence: Evidence
    notes: list[str] = field(default_factory=list)


class Before(list):
    """The storages that were there before a way began; what is alive later and not among them is
    the way's. They are kept, so that no later tensor can be given an address of theirs."""

    def __init__(self) -> None:
        super().__init__(alive())


def held_by(
    before: Before,
    model: nn.Module,
    optimizer: Optimizer,
    kinds: Mapping[str, Iterable] | None = None,
) -> dict[str, int]:
    """Bytes that a way holds between two steps, each storage once, by the first kind it fits.

    `kinds`: tensors that neither the model nor the optimizer shows, by kind: shards that stand for
    placeholders, masters in a list of the engine's own. "Master weights" are what the optimizer
    updates and the model does not have; "other" is everything else alive: buckets, copies.
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
    """The fields of `Evidence` that a book answers. A norm or a flag is not a verb of a way."""
    must: dict[str, float] = {}
    calls: dict[str, int] = {}
    for record in book.records:
        if record.op != "all_reduce" or record.payload > SMALL:
            must[record.op] = must.get(record.op, 0) + record.must
            calls[record.op] = calls.get(record.op, 0) + 1
    return {"must": must, "calls": calls}
