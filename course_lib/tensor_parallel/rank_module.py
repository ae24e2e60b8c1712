"""A module that holds groups of ranks: how it is copied, and why it goes into no file.

A group is a connection to other processes. A deep copy of a cut model, as an average of its weights
keeps one, talks to the same ranks; a pickled one would have nobody to talk to. Lesson 02.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from course_lib.collectives.call import Group


class RankModule(nn.Module):
    """A module that holds groups of ranks. A deep copy of it talks to the same ranks."""

    group: Group
    shared: tuple[int, int, Group] | None = None
    sharded: tuple[str, ...] = ()  # names of its parameters that are cut; others are replicated

    def __deepcopy__(self, memo: dict):
        for group in (self.group, *(self.shared or ())[2:]):
            memo[id(group)] = group  # connections to other processes: there is nothing to copy
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
    """What holds a group goes into no file and to no other process."""
    raise TypeError(
        f"a {type(part).__name__} cannot be pickled, nor a model with it: it holds connections to "
        "other ranks. Save numbers: torch.save(model.state_dict(), …), a file for each rank, or "
        "course_lib.pretrained.save(model, folder), which joins all ranks' parts"
    )


def check_activations(x: Tensor, weight: Tensor, layer: str) -> None:
    """Refuse what is no tensor of the weight's kind, before anything is computed or sent."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{layer} takes a tensor, and got a {type(x).__name__}")
    if x.dtype == weight.dtype or (not x.is_meta and torch.is_autocast_enabled(x.device.type)):
        return
    if not x.is_floating_point():
        raise TypeError(
            f"{layer} takes activations, and got {x.dtype}: token ids go through an embedding first"
        )
    raise TypeError(
        f"{layer} holds {weight.dtype} and got {x.dtype}: convert one, or run under autocast"
    )
