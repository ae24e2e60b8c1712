"""Ways to train a model in fewer bytes without offload: smaller states, or only adapters.

They are selective recomputation, 16 bits without master weights, 8-bit states, LoRA and QLoRA, each
with states replicated on every GPU or sharded over all GPUs. Lesson 12.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from course_lib.estimate.forward_watch import linear_layers
from course_lib.estimate.model import Model
from course_lib.estimate.setting import Setting, of_each
from course_lib.estimate.transformers_model import TransformersModel

RANK = 16  # rank of the adapters
TRAINED = 16  # bytes of an adapter's parameter: float32 value, gradient and two moments
BLOCK = 256  # elements of an 8-bit state that share a scale, in torchao
# An NF4 element: four bits, an 8-bit scale per 64 elements, and a float32 per 256 scales.
NF4 = 1 / 2 + 1 / 64 + 4 / (64 * 256)
HALF = torch.bfloat16


@dataclass(frozen=True)
class Lighter:
    """Peak bytes on a GPU in a step of one row, with states that are replicated (`whole`) or
    `sharded` over all GPUs."""

    name: str
    whole: int
    sharded: int

    def as_dict(self) -> dict:
        return asdict(self)


def lighter(model: Model, world: int, length: int) -> list[Lighter]:
    """List the ways for sequences of `length` tokens on `world` GPUs, in bfloat16 with recomputed
    blocks. The list is empty if the kept activations are unknown."""
    if model.activations_unknown:
        return []
    params, unit = model.shape.params, model.largest_unit
    again, selective = (
        model.kept(1, length, HALF, recompute=True, **how).peak for how in ({}, {"selective": True})
    )

    def way(name: str, states: float, kept: int, in_use: float, temporary: int = 0) -> Lighter:
        """Build a way; `in_use` is the bytes of gathered units, if the states are sharded."""
        kept += temporary
        return Lighter(name, int(states + kept), int(states / world + in_use + kept))

    master, shard = (sum(of_each(Setting(1, stage=s), n)) * params for s, n in ((0, 1), (3, world)))

    units = 2 * 2 * unit  # the unit in use with its gradients, and the prefetched unit
    found = [
        Lighter(
            "selective recomputation",
            int(master + selective),
            int(shard + units + 2 * unit + selective),
        ),
        way("bf16 without master weights", (2 + 2 + 4) * params, again, units + 2 * unit),
        way("bf16, 8-bit AdamW", (2 + 2 + 2 + 8 / BLOCK) * params, again, units + 2 * unit),
    ]
    theirs = TransformersModel(model.keys, model.where, HALF)
    sizes = [layer.weight.numel() for layer in linear_layers(theirs.model)]
    adapters = TRAINED * theirs.adapt(RANK)
    kept = theirs.kept(1, length, recompute=True).peak
    quantized = NF4 * sum(sizes) + 4 * (params - sum(sizes))
    return found + [
        way(f"LoRA, rank {RANK}", 2 * params + adapters, kept, units),
        way(
            f"QLoRA, rank {RANK}: 4-bit weights",
            quantized + adapters,
            kept,
            2 * NF4 * unit,
            2 * max(sizes, default=0),  # a layer's weights in 16 bits, while they are used
        ),
    ]
