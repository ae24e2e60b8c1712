"""A hand-written training loop that calls the verbs of a way, and its measurements.

The last step runs under the ledger, and held bytes are counted after it. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import ranks
from course_lib.collectives import all_reduce
from course_lib.ledger import Book, ledger
from course_lib.peers.ways.evidence import Before, Evidence, RunEvidence, traffic
from course_lib.peers.ways.setting import WaySetting
from course_lib.peers.ways.workload import Workload


@dataclass
class EngineVerbs:
    """The differences between ways. `backward` gets the loss, and True for the step's last loss;
    `step` is called after each micro-batch and returns the norm before clipping after an update."""

    call: Callable[..., object]  # forward pass; its result has a loss
    backward: Callable[[Tensor, bool], None]
    step: Callable[[bool], float | None]
    held: Callable[[Before], dict[str, int]]
    trains: object  # object whose forward is called
    updates: object  # object that its user regards as the optimizer


def of_engine(
    engine, norm: Callable[[], float | None], held: Callable[[Before], dict[str, int]]
) -> EngineVerbs:
    """Build the verbs of an engine that counts micro-batches itself (DeepSpeed's and ours)."""

    def step(last: bool) -> float | None:
        engine.step()
        return norm() if last else None

    def backward(loss: Tensor, last: bool) -> None:
        engine.backward(loss)

    return EngineVerbs(engine, backward, step, held, trains=engine, updates=engine.optimizer)


@contextmanager
def booked(last: bool) -> Iterator[Book | None]:
    if not last:
        yield None
        return
    with ledger() as book:
        yield book


def train(
    way: str, me: ranks.Me, workload: Workload, setting: WaySetting, before: Before, v: EngineVerbs
) -> RunEvidence:
    """Train with these verbs; losses are means over ranks and micro-batches."""
    losses, norms = [], []
    for step in range(workload.steps):
        with booked(step == workload.steps - 1) as book:
            total = 0.0
            for micro in range(setting.accumulate):
                last = micro == setting.accumulate - 1
                batch = on(me.device, workload.batch_of(step, micro, me.rank))
                loss = v.call(**batch).loss
                v.backward(loss, last)
                norm = v.step(last)
                total += loss.item() / setting.accumulate
            losses.append(total)
            if norm is not None:
                norms.append(norm)
        del loss, batch
    names = type(v.trains).__name__, type(v.updates).__name__
    evidence = Evidence(*names, v.held(before), **traffic(book))
    return RunEvidence(way, mean_over_ranks(losses, me), norms, evidence)


def on(device: torch.device, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def mean_over_ranks(losses: list[float], me: ranks.Me) -> list[float]:
    """Average a list over ranks; the result is the same on every rank."""
    mine = torch.tensor(losses, dtype=torch.float64).to(me.device)
    return (all_reduce(mine, dist.group.WORLD) / me.world).tolist()


def adamw(parameters, workload: Workload) -> torch.optim.AdamW:
    """Create torch's AdamW; its other options have the defaults of the Trainer and DeepSpeed."""
    return torch.optim.AdamW(
        parameters, lr=workload.lr, weight_decay=workload.weight_decay, betas=(0.9, 0.999), eps=1e-8
    )
