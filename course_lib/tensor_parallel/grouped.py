"""A module that belongs to a group of ranks: its copies belong to the same group.

A process group is a connection between processes; a copy of a layer talks over the same one.
Lesson 02 makes the first such layer.
"""

from __future__ import annotations

import copy

from torch import nn
from torch.distributed import ProcessGroup


class Grouped(nn.Module):
    """An nn.Module that `copy.deepcopy` can copy although it keeps a process group."""

    def __deepcopy__(self, memo: dict) -> Grouped:
        for value in vars(self).values():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, ProcessGroup):
                    memo[id(one)] = one
        made = memo[id(self)] = self.__class__.__new__(self.__class__)
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made
