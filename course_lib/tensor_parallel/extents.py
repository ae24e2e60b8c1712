"""Which numbers of a parameter are cut over tp, which are copies, and which are padding.

Read off the layers of the cut model, so that no rule of cutting is written a second time; what is
no layer of ours is whole. Lesson 08 needs it to count every logical number once in a norm.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from course_lib.collectives.call import Group
from course_lib.tensor_parallel.embedding import (
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
)
from course_lib.tensor_parallel.linear import ColumnParallelLinear
from course_lib.tensor_parallel.parallelize import replicated


class Extent(NamedTuple):
    """Elements `start` to `stop` of a parameter: cut over these groups, or held by these ranks."""

    start: int
    stop: int
    cut_over: tuple[Group, ...] = ()
    holders: Group | None = None


def extents(model: nn.Module, tp: Group | None) -> dict[nn.Parameter, list[Extent]]:
    """The extents of every parameter of a model that was cut over `tp`; padding is in none."""
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
