"""DeepSpeed's memory estimator, number by number: model states alone, on each host and each GPU.

Half-precision training with Adam is taken for granted; no activations, no buckets, no gaps between
blocks. Lesson 12 takes 18, 16, 4 and 1.5 apart and says what is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Bytes that one parameter costs, by use.
HALF = 2  # its 16 bits, with which the products are computed
MASTER = 4  # its float32 copy, which the optimizer updates
GRADIENT = 4  # its gradient in float32, as the update reads it
HALF_GRADIENT = 2  # its gradient as the backward makes it
MOMENTS = 4 + 4  # Adam's two averages
UPDATE = MASTER + GRADIENT + MOMENTS  # 16: what an update touches
STATES = HALF + UPDATE  # 18: all that stays with it
LAYER = HALF + HALF_GRADIENT  # 4: a layer while it runs, whole on its GPU
BUILT = 4  # as it is first made, in float32, by every process of a host for itself
ROOM = 1.5  # host memory beyond the count: staging copies, pinned memory, what Python keeps
OVERLAP = 4.5  # buckets' worth that overlap_comm takes
GB = 1 << 30  # the tables' gigabyte


@dataclass(frozen=True)
class EstimateRow:
    """One line of the table: what is offloaded, how the model is built, and what that takes.

    `cpu` is for each host and `gpu` for each GPU, in bytes. `zero_init`: the model is cut while it
    is built; None at stage 2, where every process builds all of it.
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
    """(bytes on a host, bytes on a GPU) at stage 3, with `gpus` on each of `nodes` hosts.

    The states are cut over everything: a host has 1/nodes of what is offloaded, a GPU 1/(nodes ·
    gpus) of what is not; and one layer at a time is whole on the GPU.
    """
    _check(params, largest_layer, gpus, nodes, room)
    if offload_param and not offload_optimizer:
        raise ValueError("the estimator knows offload_param only together with offload_optimizer")
    away = (STATES if offload_param else UPDATE) if offload_optimizer else 0  # bytes a parameter
    stays = STATES - away
    gpu = LAYER * largest_layer + int(stays * params / (gpus * nodes))
    if not offload_optimizer:  # the host only builds: one layer, or the model, for each process
        return int((largest_layer if zero_init else params) * BUILT * gpus * room), gpu
    share = 1 / nodes
    if zero_init:
        return int(params * away * share * room), gpu
    # What is built first, whole for each process, is gone when the states come: the larger counts.
    return int(params * max(BUILT * gpus, away * share) * room), gpu


def stage_2(
    params: int, gpus: int = 1, nodes: int = 1, *, offload_optimizer: bool, room: float = ROOM
) -> tuple[int, int]:
    """(bytes on a host, bytes on a GPU) at stage 2: the 16 bits are whole on every GPU.

    Here the 16-bit gradients are counted too, and with offload nothing is divided: a host has all
    states, however many hosts there are, and 4 bytes for each process of all of them.
    """
    _check(params, 0, gpus, nodes, room)
    if offload_optimizer:
        return int(params * max(BUILT * gpus * nodes, UPDATE) * room), HALF * params
    away = HALF_GRADIENT + UPDATE  # 18 once more, from other parts
    return int(params * BUILT * gpus * room), HALF * params + int(away * params / (gpus * nodes))


def table(
    params: int, largest_layer: int, gpus: int = 1, nodes: int = 1, *, stage: int = 3
) -> list[EstimateRow]:
    """The estimator's lines, in its order: from all offloaded to none."""
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
            f"the largest layer has {largest_layer} parameters and the whole model {params}: a "
            "layer cannot be larger than its model. Were the two exchanged?"
        )
    if not (room >= 1 and math.isfinite(room)):
        raise ValueError(f"room={room} is a factor of what is counted: it has to be 1 or more")
