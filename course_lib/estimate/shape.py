"""The number of parameters in a model and in its largest layer, read only from shapes.

A Config or a model is enough, because no element is read. Lesson 12.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from course_lib.gpt import MLP, Attention, Config
from course_lib.pretrained.sketch import without_numbers


class Shape(NamedTuple):
    """Numbers of distinct parameters in a model, and in the module that directly holds most."""

    params: int
    largest_layer: int


def sketch(model: nn.Module | Config, dtype: torch.dtype | None = None) -> nn.Module:
    """Copy a model with shapes but without values, in `dtype` if it is given."""
    if isinstance(model, Config):  # made here, so no copy is needed
        return without_numbers(model).to(dtype)
    known: dict[int, object] = {}
    for x in [*model.parameters(), *model.buffers()]:
        shape = torch.empty(x.shape, dtype=x.dtype, device="meta")
        trains = x.requires_grad
        known[id(x)] = nn.Parameter(shape, trains) if isinstance(x, nn.Parameter) else shape
    outline = copy.deepcopy(model, known)
    return outline if dtype is None else outline.to(dtype)


def sketch_of(
    model: nn.Module | Config, dtype: torch.dtype | None, units: Sequence[nn.Module] | None
) -> tuple[nn.Module, Sequence[nn.Module] | None]:
    """Sketch a model, unless it already is a sketch, and find the sketch's modules for `units`."""
    if isinstance(model, Config):
        return sketch(model, dtype), units
    tensors = [*model.parameters(), *model.buffers()]
    dtypes = {x.dtype for x in tensors if x.is_floating_point()}
    if all(x.is_meta for x in tensors) and (dtype is None or dtypes <= {dtype}):
        return model, units
    outline = sketch(model, dtype)
    if units is None:
        return outline, None
    names = {module: name for name, module in model.named_modules()}
    return outline, [outline.get_submodule(names[module]) for module in units]


def shape_of(model: nn.Module | Config) -> Shape:
    """Count parameters; a shared one counts once in the total, and once in each of its layers.

    Our GPT joins some layers into one product. They count separately, as in a checkpoint: for
    Llama, q, k, v, gate and up are five layers.
    """
    apart = isinstance(model, Config) and model.activation == "swiglu"
    if isinstance(model, Config):
        model = without_numbers(model)
    most = 0
    joined: dict[nn.Module, list[int]] = {}
    for module in model.modules():
        if apart and isinstance(module, Attention):
            heads = (module.heads, module.kv_heads, module.kv_heads)
            joined[module.qkv] = [n * module.head_size for n in heads]
        if apart and isinstance(module, MLP):
            joined[module.gate_up] = [module.gate_up.out_features // 2] * 2
    for module in model.modules():
        own = sum(p.numel() for p in module.parameters(recurse=False))
        if module in joined:
            rows = joined[module]
            own = own // sum(rows) * max(rows)
        most = max(most, own)
    return Shape(sum(p.numel() for p in model.parameters()), most)
