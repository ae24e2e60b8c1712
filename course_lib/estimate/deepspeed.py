"""DeepSpeed's memory estimator, reproduced exactly: only model states, per host and per GPU.

It assumes half-precision training with Adam, and omits activations, buckets and gaps between
blocks. Lesson 12 derives the constants 18, 16, 4 and 1.5, and lists the omissions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Bytes that one parameter costs, by use.
HALF = 2  # the 16-bit value, which the products use
MASTER = 4  # the float32 copy, which the optimizer updates
GRADIENT = 4  # the gradient in float32, as the update reads it
HALF_GRADIENT = 2  # the gradient from the backward pass
MOMENTS = 4 + 4  # Adam's two moments
UPDATE = MASTER + GRADIENT + MOMENTS  # 16: the bytes that an update touches
STATES = HALF + UPDATE  # 18: all bytes of a parameter
LAYER = HALF + HALF_GRADIENT  # 4: a layer while it runs, unsharded on its GPU
BUILT = 4  # the first float32 value, built by every process of a host
ROOM = 1.5  # factor for other host memory: staging copies, pinned memory, Python
OVERLAP = 4.5  # number of buckets that overlap_comm takes
GB = 1 << 30  # a gigabyte in the tables


@dataclass(frozen=True)
class EstimateRow:
    """One row of the table: the offload places, how the model is built, and the bytes.

    `cpu` is the bytes per host, and `gpu` the bytes per GPU. `zero_init` is 1 if the model is
    sharded while it is built, and None at stage 2, where every process builds the full model.
    """

    offload_param: str
    offload_optimizer: str
    zero_init: int | None
    cpu: int
    gpu: int

    @property
    def cpu_gb(self) -> float:
        return round(self.cpu / GB, 2)

    @property
    def gpu_gb(self) -> float:
        return round(self.gpu / GB, 2)

    def as_dict(self) -> dict:
        names = ("offload_param", "offload_optimizer", "zero_init", "cpu_gb", "gpu_gb")
        return {name: getattr(self, name) for name in names}


def stage_3(
    params: int,
    largest_layer: int,
    gpus: int = 1,
    nodes: int = 1,
    *,
    offload_optimizer: bool,
    offload_param: bool = False,
    zero_init: bool = True,
    room: float = ROOM,
) -> tuple[int, int]:
    """Estimate (bytes on a host, bytes on a GPU) at stage 3, with `gpus` on each of `nodes` hosts.

    All GPUs share the states. A host has 1/nodes of the offloaded states, a GPU has 1/(nodes ·
    gpus) of the other states, and a GPU also holds one unsharded layer at a time.
    """
    _check(params, largest_layer, gpus, nodes, room)
    if offload_param and not offload_optimizer:
        raise ValueError("the estimator knows offload_param only together with offload_optimizer")
    away = (STATES if offload_param else UPDATE) if offload_optimizer else 0  # bytes per parameter
    stays = STATES - away
    gpu = LAYER * largest_layer + int(stays * params / (gpus * nodes))
    if not offload_optimizer:  # the host only builds a layer or the model per process
        return int((largest_layer if zero_init else params) * BUILT * gpus * room), gpu
    share = 1 / nodes
    if zero_init:
        return int(params * away * share * room), gpu
    # The full model of each process is freed before the states exist, so the larger counts.
    return int(params * max(BUILT * gpus, away * share) * room), gpu


def stage_2(
    params: int, gpus: int = 1, nodes: int = 1, *, offload_optimizer: bool, room: float = ROOM
) -> tuple[int, int]:
    """Estimate (bytes on a host, bytes on a GPU) at stage 2, with 16-bit weights on every GPU.

    Without offload, 16-bit gradients are counted too. With offload, each host holds all states, or
    4 bytes per parameter for each process of all hosts if that is more.
    """
    _check(params, 0, gpus, nodes, room)
    if offload_optimizer:
        return int(params * max(BUILT * gpus * nodes, UPDATE) * room), HALF * params
    away = HALF_GRADIENT + UPDATE  # 18 again, from different parts
    return int(params * BUILT * gpus * room), HALF * params + int(away * params / (gpus * nodes))


def table(
    params: int, largest_layer: int, gpus: int = 1, nodes: int = 1, *, stage: int = 3
) -> list[EstimateRow]:
    """List the estimator's rows in its own order, from full offload to none."""
    if stage not in (2, 3):
        raise ValueError(f"stage={stage}: the estimator knows the stages 2 and 3")
    word = {True: "cpu", False: "none"}
    if stage == 2:
        return [
            EstimateRow(
                "none", word[states], None, *stage_2(params, gpus, nodes, offload_optimizer=states)
            )
            for states in (True, False)
        ]
    rows = []
    for param, states in ((True, True), (False, True), (False, False)):
        for init in (True, False):
            how = {"offload_optimizer": states, "offload_param": param, "zero_init": init}
            sizes = stage_3(params, largest_layer, gpus, nodes, **how)
            rows.append(EstimateRow(word[param], word[states], int(init), *sizes))
    return rows


def _check(params: int, largest_layer: int, gpus: int, nodes: int, room: float) -> None:
    counts = {"gpus": gpus, "nodes": nodes, "params": params, "largest_layer": largest_layer}
    for name, value in counts.items():
        least = 0 if name == "largest_layer" else 1
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r} has to be a whole number, {least} or more")
    if largest_layer > params:
        raise ValueError(
            f"the largest layer has {largest_layer} parameters and the model only {params}, but a "
            "layer cannot be larger than its model. Were the two swapped?"
        )
    if not (room >= 1 and math.isfinite(room)):
        raise ValueError(f"room={room} is a factor on the counted bytes, so it has to be 1 or more")
