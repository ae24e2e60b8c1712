"""An optimizer's states in a safetensors file, by the names of the parameters: no pickle.

Each tp rank writes its own; replicas have the same. What is read is checked against what the model
needs before anything is changed. Lesson 08; lesson 14 cuts them anew.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from course_lib.pretrained import Checkpoint, CheckpointError
from course_lib.pretrained.header import make_header

KEYS = ("step", "exp_avg", "exp_avg_sq")  # of AdamW, for each parameter


def write(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> str:
    """All states of this rank, tensor after tensor, and on the disk when this returns; the sum of
    the bytes as they were in memory."""
    found = {
        f"{name}:{key}": optimizer.state[p][key].detach()
        for name, p in model.named_parameters()
        if p.requires_grad
        for key in KEYS
    }
    header, slots = make_header({name: (x.dtype, tuple(x.shape)) for name, x in found.items()})
    digest = hashlib.sha256(header)
    with path.open("wb") as file:
        file.write(header)
        for name in sorted(slots, key=lambda name: slots[name].start):
            piece = _bytes(found[name])
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def read(model: nn.Module, path: Path) -> dict[nn.Parameter, dict[str, Tensor]]:
    """The states by parameter, on its device, once all are there and fit; `put` them in then."""
    states: dict[nn.Parameter, dict[str, Tensor]] = {}
    file = Checkpoint(path)
    try:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        wanted = {f"{name}:{key}" for name, _ in named for key in KEYS}
        if wanted != set(file.slots):
            other = sorted(wanted ^ set(file.slots))
            raise CheckpointError(
                f"{path} holds the states of another model: it and this one differ in "
                f"{len(other)} of them, such as {other[0]}"
            )
        for name, p in named:
            states[p] = {}
            for key in KEYS:
                slot = file.slots[f"{name}:{key}"]
                shape = () if key == "step" else tuple(p.shape)
                if slot.shape != shape:
                    raise CheckpointError(
                        f"{path}: {name}:{key} is {slot.shape}, and this rank's part of {name} "
                        f"makes it {shape}; was the model cut in another way?"
                    )
                # torch keeps the count on the CPU.
                x = _read(file, f"{name}:{key}")
                states[p][key] = x if key == "step" else x.to(p.device)
    finally:
        file.close()
    return states


def put(optimizer: torch.optim.Optimizer, states: dict) -> None:
    for p, state in states.items():
        optimizer.state[p] = state


def _read(file: Checkpoint, name: str) -> Tensor:
    shape = file.slots[name].shape
    if 0 in shape:  # a rank without a part of this weight
        return torch.empty(shape)
    if shape:
        return file.read(name)
    file.slots[name] = file.slots[name]._replace(shape=(1,))  # a number is read as a row of one
    return file.read(name).reshape(())


def _bytes(x: Tensor) -> bytes:
    return x.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
