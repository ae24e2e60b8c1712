"""The box of a logical tensor that a DTensor's local shard is: a checkpoint for torch's own models.

`fully_shard` and `parallelize_module` make DTensors; with the box of each, `Saved` reads exactly
what this rank holds. Lesson 14 does it in five lines.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from course_lib.layout import Box


def box_of(x: torch.Tensor) -> Box:
    """Which part of the whole tensor this rank's is; of a plain tensor, all."""
    if not isinstance(x, DTensor):
        return Box((0,) * x.dim(), tuple(x.shape))
    shape, offset = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    return Box(tuple(offset), tuple(shape))


def local_of(x: torch.Tensor) -> torch.Tensor:
    """The memory that this rank has of it."""
    return x.to_local() if isinstance(x, DTensor) else x
