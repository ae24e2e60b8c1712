"""One way to run a step, its needs, and the bytes of a parameter on every tier.

The ladder changes rows, micro-batches, recomputation, stage, offload and precision rung by rung.
The bytes agree with `memory`, but need only the number of parameters. Lesson 12.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from course_lib.zero import Precision

FOLDER = Path("offload")  # any folder, because a plan needs a name


@dataclass(frozen=True)
class Setting:
    """Settings of a step: `rows` sequences per micro-batch and GPU, and `accumulate` micro-batches.
    `optimizer` and `parameters` are their offload tiers. If `lean`, no parameter stays gathered."""

    rows: int
    accumulate: int = 1
    recompute: bool = False
    stage: int = 0
    optimizer: str | None = None
    parameters: str | None = None
    lean: bool = False
    precision: str = "bfloat16"

    @property
    def offload(self) -> dict | None:
        """Value for the offload= argument of zero.engine."""
        if self.optimizer is None and self.parameters is None:
            return None
        plan: dict = {"optimizer": self.optimizer, "parameters": self.parameters}
        return {**plan, "folder": FOLDER} if "nvme" in plan.values() else plan

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of an element in a product."""
        return Precision.named(self.precision).dtype

    @property
    def width(self) -> int:
        """Bytes of an element in a product."""
        return self.dtype.itemsize

    @property
    def master(self) -> bool:
        return Precision.named(self.precision).master


@dataclass(frozen=True)
class Needs:
    """Bytes of a step. `gpu` is a GPU's peak, and `activations` the part kept by a forward pass (if
    unknown, None and not part of `gpu`). `host` and `disk` are per node. The others are per GPU:
    `sent` to other GPUs, moved `down` to the host and `up` from it, `read` from files and `written`
    to files."""

    gpu: int
    activations: int | None
    host: int
    disk: int
    sent: int
    down: int = 0
    up: int = 0
    read: int = 0
    written: int = 0


def moves(setting: Setting, *, twice: bool = True) -> tuple[int, int]:
    """Count the (all-gathers, reduce-scatters) of all parameters over the replicas in a step. With
    `twice`, stage 3 gathers again for the backward pass."""
    k = setting.accumulate
    return {2: (1, k), 3: (2 * k if twice else k, k)}.get(setting.stage, (1, 1))


def of_each(setting: Setting, n: int) -> tuple[float, float, float]:
    """Compute the (device, host, disk) bytes of a parameter on a rank while gradients exist."""
    width, wide = setting.width, 4 if setting.master else setting.width
    parts = n if setting.stage else 1
    model = width / (n if setting.stage == 3 else 1)
    device = model + (width if setting.stage < 2 else 0)
    sums = wide / parts if setting.stage >= 2 or setting.master or setting.optimizer else 0
    values = wide / parts * (setting.master or bool(setting.optimizer or setting.parameters))
    if setting.optimizer and setting.parameters and not setting.master:
        values = 0.0  # the update changes the shards on the host
    kept = 2 * wide / parts  # Adam's moments
    host = disk = 0.0
    if setting.optimizer is None:
        device += sums + values + kept
    else:
        host += sums
        if setting.optimizer == "cpu":
            host += values + kept
        else:
            disk += (values or wide / parts) + kept
    if setting.parameters is not None:
        device -= model
        if setting.parameters == "cpu":
            host += model
        elif setting.master:  # a file has them in addition to the masters
            disk += model
    return device, host, disk
