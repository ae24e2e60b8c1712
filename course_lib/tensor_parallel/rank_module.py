"""A module that holds groups of ranks, which can be copied but not pickled.

A group connects a rank to other processes. A deep copy of a sharded model (for example, for
averaged weights) uses the same connections, but a pickled model would have none. Lesson 02.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from course_lib.collectives.call import Group


class RankModule(nn.Module):
    """A module that holds groups of ranks. A deep copy of it communicates with the same ranks."""

    group: Group
    shared: tuple[int, int, Group] | None = None
    sharded: tuple[str, ...] = ()  # names of its sharded parameters; others are replicated

    def __deepcopy__(self, memo: dict):
        for group in (self.group, *(self.shared or ())[2:]):
            memo[id(group)] = group  # a connection to other processes cannot be copied
        made = memo[id(self)] = self.__class__.__new__(self.__class__)
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def __copy__(self):
        made = self.__class__.__new__(self.__class__)
        made.__dict__.update(self.__dict__)
        return made

    def __reduce_ex__(self, protocol: int):
        refuse_to_pickle(self)


def refuse_to_pickle(part: object):
    """Raise, because an object with a group cannot go into a file or to a different process."""
    raise TypeError(
        f"a {type(part).__name__} cannot be pickled, nor a model with it, because it holds "
        "connections to other ranks. Save tensors: torch.save(model.state_dict(), …) on each rank, "
        "or course_lib.pretrained.save(model, folder), which joins all ranks' parts"
    )


def check_activations(x: Tensor, weight: Tensor, layer: str) -> None:
    """Raise before any computation or message unless x is a tensor with the weight's dtype."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{layer} takes a tensor, but got a {type(x).__name__}")
    if x.dtype == weight.dtype or (not x.is_meta and torch.is_autocast_enabled(x.device.type)):
        return
    if not x.is_floating_point():
        raise TypeError(
            f"{layer} takes activations, but got {x.dtype}: token ids go through an embedding first"
        )
    raise TypeError(
        f"{layer} holds {weight.dtype} but got {x.dtype}: convert one, or run under autocast"
    )
