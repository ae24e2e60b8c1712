"""The optimizer's parameters are exchanged for this rank's parts, and it notices nothing.

Groups stay groups, a schedule goes on holding the same optimizer, and states that an optimizer has
made before its first step are cut like the parameters they belong to. Lesson 09.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.optim import Optimizer

from course_lib.zero.partition import Piece
from course_lib.zero.shards import Copies


def check_fresh(optimizer: Optimizer) -> None:
    """Refuse an optimizer that has made steps: its moments belong to whole parameters."""
    for state in optimizer.state.values():
        if any(torch.is_tensor(value) and value.is_meta for value in state.values()):
            raise ValueError(
                f"this {type(optimizer).__name__} made its states with the model, on torch's meta "
                "device, where they have no numbers; give the model its numbers first"
            )
        if float(state.get("step", 1 if state else 0)) != 0:
            raise ValueError(
                f"this {type(optimizer).__name__} has made a step already, and its states belong "
                "to whole parameters; make the engine before the first step"
            )


def hand_over(optimizer: Optimizer, shards: Copies) -> None:
    """Let the optimizer know this rank's parts in the place of whole parameters, group by group."""
    parts: dict[nn.Parameter, list[tuple[Piece, nn.Parameter]]] = {}
    for piece, part in shards.parts():
        parts.setdefault(piece.slot.parameter, []).append((piece, part))
    for group in optimizer.param_groups:
        own = []
        for p in group["params"]:
            whole = optimizer.state.pop(p, None)
            for piece, part in parts.get(p, []):
                own.append(part)
                if whole:
                    optimizer.state[part] = {k: _cut(k, v, piece, part) for k, v in whole.items()}
        group["params"] = own


def _cut(name: str, value: object, piece: Piece, part: nn.Parameter) -> object:
    if name == "step" or not torch.is_tensor(value) or value.shape != piece.slot.shape:
        return copy.deepcopy(value)
    own = value.reshape(-1)[piece.start : piece.stop].view(part.shape)
    return own.to(part.device, part.dtype, copy=True)
