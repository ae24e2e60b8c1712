"""Three trainings that are saved and loaded: ours, torch's FSDP2 and DCP, DeepSpeed's.

Each uses the best settings of those that were tried here; a comment next to each lists them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from _zero_ways import Task, deepspeed_engine, update, verbs

from course_lib import checkpoint, zero

THREADS = 1  # for DCP's writer; 2 and 4 were no faster, on two cores


@dataclass(frozen=True)
class Way:
    """The `save` and `load` of a training, and its weights, whose sum identifies the state."""

    save: Callable[[], object]
    load: Callable[..., object]
    weights: Callable[[], list[torch.Tensor]]
    sharded: bool

    def saved(self) -> float:
        self.save()
        return self.sum()

    @torch.no_grad()
    def loaded(self, **more) -> float:
        for x in self.weights():
            x.zero_()
        self.load(**more)
        return self.sum()

    @torch.no_grad()
    def sum(self) -> float:
        """Return the sum of the absolute weights of the full model."""
        total = torch.stack([one_norm(x).cpu() for x in self.weights()]).sum()
        if self.sharded:
            dist.all_reduce(total)
        return total.item()


def one_norm(x: torch.Tensor) -> torch.Tensor:
    """Sum in float64 in pieces, since a copy of a table would dominate the memory."""
    pieces = x.reshape(-1).split(1 << 16)
    return torch.stack([piece.double().abs().sum() for piece in pieces]).sum()


def ours(task: Task, folder: Path) -> Way:
    model = task.model()
    engine = zero.engine(
        model, task.adamw(model.parameters()), stage=2, mesh=task.mesh, check=False
    )
    task.ending.callback(engine.close)
    task.training(engine, engine.backward, engine.step)()
    return Way(
        lambda: checkpoint.save(folder, 1, engine, task.mesh, keep=1, streams=False),
        functools.partial(
            checkpoint.load, folder / "step-000001", engine, task.mesh, streams=False
        ),
        lambda: [p.detach() for p in model.parameters()],
        sharded=False,
    )


def dcp(task: Task, folder: Path) -> Way:
    import torch.distributed.checkpoint as writers
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    model = task.model()
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=task.mesh["dp"])
    optimizer = task.adamw(model.parameters())
    task.training(model, update=update(optimizer))()
    place = folder / "step"

    def save() -> None:
        weights, states = get_state_dict(model, optimizer)
        writer = writers.FileSystemWriter(place, thread_count=THREADS)
        writers.save({"model": weights, "optimizer": states}, storage_writer=writer)

    def load() -> None:
        weights, states = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": states}
        writers.load(state, storage_reader=writers.FileSystemReader(place))
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )

    return Way(save, load, lambda: [p.to_local() for p in model.parameters()], sharded=True)


def theirs(task: Task, folder: Path) -> Way:
    engine = deepspeed_engine(task, "deepspeed-2", "2")
    task.training(*verbs(engine))()

    def save() -> None:
        engine.save_checkpoint(str(folder), tag="step")
        for number, path in enumerate(sorted((folder / "step").iterdir())):
            if number % task.me.world == task.me.rank:
                sync(path)
        dist.barrier()

    return Way(
        save,
        lambda: engine.load_checkpoint(str(folder), tag="step"),
        lambda: [p.detach() for p in engine.module.parameters()],
        sharded=False,
    )


def sync(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


WAYS = {"course_lib": ours, "torch-dcp": dcp, "deepspeed": theirs}
