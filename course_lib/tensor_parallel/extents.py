"""Extents of a parameter: elements that are sharded over tp, replicated, or padding.

They are read from the sharded model's layers, so no rule for splits is written twice. Other layers
are replicated. Lesson 08 uses extents to count every logical element once in a norm.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from course_lib.collectives.call import Group
from course_lib.tensor_parallel.embedding import VocabularyParallelEmbedding, VocabularyParallelHead
from course_lib.tensor_parallel.linear import ColumnParallelLinear
from course_lib.tensor_parallel.parallelize import replicated


class Extent(NamedTuple):
    """Elements `start` to `stop` of a parameter, with the groups that shard them or hold copies."""

    start: int
    stop: int
    cut_over: tuple[Group, ...] = ()
    holders: Group | None = None


def extents(model: nn.Module, tp: Group | None) -> dict[nn.Parameter, list[Extent]]:
    """Return the extents of every parameter of a model sharded over `tp`, without padding."""
    whole = {p for _, p in replicated(model)}
    by_parameter: dict[nn.Parameter, list[Extent]] = {}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            if p in by_parameter:
                continue
            over = () if p in whole or tp is None else (tp,)
            if isinstance(module, (VocabularyParallelEmbedding, VocabularyParallelHead)):
                table = model.tokens if isinstance(module, VocabularyParallelHead) else module
                real = max(0, min(table.stop, table.vocabulary) - table.start)
                by_parameter[p] = [Extent(0, real * table.hidden, over)]
            elif isinstance(module, ColumnParallelLinear) and module.shared is not None:
                start, stop, holders = module.shared
                row = p[0].numel() if p.dim() > 1 else 1
                by_parameter[p] = [
                    Extent(0, start * row, over),
                    Extent(start * row, stop * row, over, holders),
                    Extent(stop * row, p.numel(), over),
                ]
            else:
                by_parameter[p] = [Extent(0, p.numel(), over)]
    return by_parameter
