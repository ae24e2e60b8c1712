"""Ways to train a model in fewer bytes that need no offload: other states, or adapters alone.

Selective recomputation, 16 bits without master weights, 8-bit states, LoRA and QLoRA, each whole on
every GPU or sharded over all of them. Lesson 12.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from course_lib.estimate.forward_watch import linear_layers
from course_lib.estimate.model import Model
from course_lib.estimate.setting import Setting, of_each
from course_lib.estimate.transformers_model import TransformersModel

RANK = 16  # of the adapters
TRAINED = 16  # bytes of a parameter of an adapter: in float32, with its gradient and two moments
BLOCK = 256  # numbers of an 8-bit state that share a scale, in torchao
# An NF4 number: four bits, an 8-bit scale for 64 of them, and a float32 for 256 of those scales.
NF4 = 1 / 2 + 1 / 64 + 4 / (64 * 256)
HALF = torch.bfloat16


@dataclass(frozen=True)
class Lighter:
    """Bytes of a GPU at the highest point of a step of one row: with the model `whole` on each, or
    `sharded` over all."""

    name: str
    whole: int
    sharded: int

    def as_dict(self) -> dict:
        return asdict(self)


def lighter(model: Model, world: int, length: int) -> list[Lighter]:
    """The ways for sequences of `length` tokens on `world` GPUs, in bfloat16, blocks recomputed;
    none where it is not known what a forward keeps."""
    if model.activations_unknown:
        return []
    params, unit = model.shape.params, model.largest_unit
    again, selective = (
        model.kept(1, length, HALF, recompute=True, **how).peak for how in ({}, {"selective": True})
    )

    def way(name: str, states: float, kept: int, in_use: float, temporary: int = 0) -> Lighter:
        """`in_use`: bytes of units that are whole while they are used, where states are sharded."""
        kept += temporary
        return Lighter(name, int(states + kept), int(states / world + in_use + kept))

    master, shard = (sum(of_each(Setting(1, stage=s), n)) * params for s, n in ((0, 1), (3, world)))

    units = 2 * 2 * unit  # that in use and the one fetched ahead, and the first's gradients
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
