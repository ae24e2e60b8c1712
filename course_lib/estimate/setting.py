"""One way to run a step, what it needs, and what a parameter costs under it on every tier.

Rows and micro-batches, recomputation, stage, offload, precision: what the ladder turns, rung by
rung. The bytes are those of `memory`, from the number of parameters alone. Lesson 12.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from course_lib.zero import Precision

FOLDER = Path("offload")  # files lie anywhere; a plan wants a name


@dataclass(frozen=True)
class Setting:
    """How a step is run: `rows` sequences a micro-batch on each GPU, `accumulate` of those a step;
    `optimizer` and `parameters` say where they wait; `lean`: no parameter stays whole."""

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
        """What zero.engine takes as offload=."""
        if self.optimizer is None and self.parameters is None:
            return None
        plan: dict = {"optimizer": self.optimizer, "parameters": self.parameters}
        return {**plan, "folder": FOLDER} if "nvme" in plan.values() else plan

    @property
    def dtype(self) -> torch.dtype:
        """Of an element in a product."""
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
    """Bytes of a step: `gpu` at its highest point; `activations` that a forward keeps, None where
    there is no form for them, and then none in `gpu`; `host` and `disk` of a node; and what a GPU
    moves in a step: `sent` to others, `down` to the host and `up`, `read` from files and `written`.
    """

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
    """(all-gathers, reduce-scatters) of the parameters' bytes over the replicas in a step; `twice`:
    stage 3 gathers for the backward too."""
    k = setting.accumulate
    return {2: (1, k), 3: (2 * k if twice else k, k)}.get(setting.stage, (1, 1))


def of_each(setting: Setting, n: int) -> tuple[float, float, float]:
    """(device, host, disk) bytes that a parameter costs a rank while gradients are alive."""
    width, wide = setting.width, 4 if setting.master else setting.width
    parts = n if setting.stage else 1
    model = width / (n if setting.stage == 3 else 1)
    device = model + (width if setting.stage < 2 else 0)
    sums = wide / parts if setting.stage >= 2 or setting.master or setting.optimizer else 0
    values = wide / parts * (setting.master or bool(setting.optimizer or setting.parameters))
    if setting.optimizer and setting.parameters and not setting.master:
        values = 0.0  # the shards on the host are what is updated
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
        elif setting.master:  # a file has them beside what is updated
            disk += model
    return device, host, disk
