"""Shapes of one tensor-parallel rank's model, without parameter values or other ranks.

They are the shapes that `parallelize` leaves on a rank, computed only from the rule that shards
tensors, because the closed forms read only a model's names and shapes. Lesson 15.
"""

from __future__ import annotations

import torch
from torch import nn

from course_lib.estimate.over_tp import part_of
from course_lib.gpt import GPT, Config
from course_lib.pretrained.sketch import without_numbers


def outline_of_rank(
    config: Config, tp: int = 1, rank: int = 0, *, dtype: torch.dtype | None = None
) -> GPT:
    """Build a GPT on meta whose parameters have the sizes of rank `rank` of `tp`. It keeps the full
    model's config."""
    part = part_of(config, 1, 1, tp, rank)
    model = without_numbers(config).to(dtype)
    if tp == 1:
        return model
    joined = part.heads + 2 * part.kv_heads
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        _cut(attention.qkv, 0, joined * config.head_size)
        _cut(attention.out, 1, part.heads * config.head_size)
        if config.activation == "swiglu":
            _cut(mlp.gate_up, 0, 2 * part.inner)
        else:
            _cut(mlp.up, 0, part.inner)
        _cut(mlp.down, 1, part.inner)
    _cut(model.tokens, 0, part.words)
    if config.tied:
        model.head.weight = model.tokens.weight
    else:
        _cut(model.head, 0, part.words)
    return model


def _cut(layer: nn.Module, dim: int, size: int) -> None:
    """Shrink a layer to `size` along a dim of its weight; along dim 0, the bias shrinks too."""
    for name, p in list(layer.named_parameters(recurse=False)):
        if dim < p.dim() and (dim == 0 or name == "weight"):
            shape = [*p.shape]
            shape[dim] = size
            setattr(layer, name, nn.Parameter(p.new_empty(shape)))
