"""The box of a logical tensor that a DTensor's local shard covers, for models sharded by torch.

`fully_shard` and `parallelize_module` make DTensors. With each DTensor's box, `OpenCheckpoint`
reads exactly this rank's shard. Lesson 14 shows this in five lines.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from course_lib.layout import Box


def box_of(x: torch.Tensor) -> Box:
    """Return the box of this rank's shard in the full tensor, or a plain tensor's full box."""
    if not isinstance(x, DTensor):
        return Box((0,) * x.dim(), tuple(x.shape))
    shape, offset = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    return Box(tuple(offset), tuple(shape))


def local_of(x: torch.Tensor) -> torch.Tensor:
    """Return this rank's local shard of a DTensor, or a plain tensor itself."""
    return x.to_local() if isinstance(x, DTensor) else x
