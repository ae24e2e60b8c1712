"""What every method of `course bench zero` is given: the same weights, data and optimizer.

A method is a model, a way of going back from its loss and a way of updating; what it holds is
counted as what has come to be alive in the process since before it was made.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from course_lib import ranks
from course_lib.gpt import GPT, Config
from course_lib.memory.storages import alive
from course_lib.meta import memory_key

BATCHES = 8
WARM = 3  # DDP's second step still broadcasts, and DeepSpeed's first steps differ from the others


@dataclass
class Task:
    """One rank's part of the work. `ending` undoes what a method has made, after its group."""

    me: ranks.Me
    mesh: DeviceMesh
    dense: GPT
    words: Tensor  # (batches, b, s + 1), other words on each rank
    folder: Path
    ending: ExitStack = field(default_factory=ExitStack)
    notes: list[str] = field(default_factory=list)

    def model(self) -> GPT:
        return copy.deepcopy(self.dense)

    def adamw(self, parameters, **options) -> torch.optim.AdamW:
        options = {"lr": 1e-4, "weight_decay": 0.01, "fused": True, **options}
        return torch.optim.AdamW(parameters, **options)

    def training(
        self,
        model: Callable[[Tensor], Tensor],
        backward: Callable[[Tensor], None],
        update: Callable[[], object],
    ) -> Callable[[], float]:
        """One step after another on the same few batches; each gives this rank's loss."""
        made = 0

        def step() -> float:
            nonlocal made
            batch = self.words[made % len(self.words)]  # (b, s + 1)
            made += 1
            logits = model(batch[:, :-1].contiguous())  # (b, s, v)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
            del logits
            backward(loss)
            update()
            return loss.item()

        return step


def task(me: ranks.Me, workload: dict, folder: str) -> Task:
    names = ("vocabulary", "hidden", "layers", "heads")
    config = Config.gpt2(
        **{name: workload[name] for name in names}, length=workload["sequence"], tied=False
    )
    torch.manual_seed(0)  # the same weights on every rank
    dense = GPT(config).to(me.device, getattr(torch, workload["dtype"]))
    drawn = torch.Generator().manual_seed(1 + me.rank)
    shape = (BATCHES, workload["batch"] // me.world, workload["sequence"] + 1)
    words = torch.randint(workload["vocabulary"], shape, generator=drawn).to(me.device)
    made = Task(me, ranks.mesh(me, dp=me.world, tp=1), dense, words, Path(folder))
    gc.collect()
    gc.freeze()  # what is there by now stays; to look for what is alive is then quick
    return made


def backward(loss: Tensor) -> None:
    loss.backward()


def update(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """torch's own way of ending a step."""

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def bytes_alive() -> int:
    """Of all tensors in this process, each storage once."""
    return sum({memory_key(one): one.nbytes() for one in alive()}.values())
