"""A model's names and shapes without elements, on torch's meta device.

For some operations on meta, torch first loads its tracer, which takes seconds on every rank. The
few operations that are needed here are handled directly. Lesson 08.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from course_lib.gpt import GPT, Config

DRAWS = {Tensor.normal_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_}


class Sketching(TorchFunctionMode):
    """A mode in which meta tensors are neither drawn nor concatenated; only shapes are computed."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in DRAWS:
            x = args[0] if args else kwargs["tensor"]
            return x if x.is_meta else function(*args, **kwargs)
        if function is torch.cat and args[0][0].is_meta:
            return _joined(*args, **kwargs)
        return function(*args, **kwargs)


def without_numbers(config: Config) -> GPT:
    """Create the dense model on meta."""
    with torch.device("meta"), Sketching():
        return GPT(config)


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return parts[0].new_empty(shape)
