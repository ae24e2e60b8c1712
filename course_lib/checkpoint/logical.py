"""The part of every logical tensor that this rank holds, and the part that it writes.

If several ranks hold the same elements (dp replicas or tp copies), they divide them evenly, so that
each element is written, and counted in a checksum, by exactly one rank. Lesson 14.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.collectives.call import Group
from course_lib.gpt import GPT
from course_lib.layout import Box, flat_boxes
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.names import Weight, held, weights_of
from course_lib.zero import Engine
from course_lib.zero.partition import through


class Tensor(NamedTuple):
    """A parameter on this rank: its local and its logical shape, and the mapping between them."""

    name: str
    own: tuple[int, ...]
    shape: tuple[int, ...]
    dim: int  # along which the rank holds these spans of the logical tensor
    spans: tuple[tuple[int, int], ...] | None  # None: all of it
    shares: tuple[tuple[int, int, int, int], ...]  # start, stop, holders, index among them
    weight: Weight | None  # how Hugging Face stores it

    @property
    def padded(self) -> bool:
        """True if this rank's tensor has elements that the logical tensor lacks."""
        return sum(stop - start for start, stop, _, _ in self.shares) < math.prod(self.own)

    def boxes(self, start: int, stop: int) -> Iterator[tuple[Box, int, bool]]:
        """Yield (logical box, offset from `start`, True if this rank writes it) for elements
        `start` to `stop` of this rank's tensor. Padding is in no box."""
        whole = self.spans is None
        for first, last, count, which in self.shares:
            edges = [first + (last - first) * k // count for k in (0, which, which + 1, count)]
            for a, b, counts in zip(edges, edges[1:], (False, True, False), strict=False):
                a, b = max(a, start), min(b, stop)
                for held_box in flat_boxes(self.own, a, b) if a < b else ():
                    at = a - start
                    for box in [held_box] if whole else through(held_box, self.dim, self.spans):
                        yield box, at, counts
                        at += box.numel
                    a += held_box.numel


def tensors_of(engine: Engine, mesh: DeviceMesh) -> dict[str, Tensor]:
    """Return every parameter of the engine's model by name, including frozen parameters."""
    module, dp = engine.module, mesh.get_group("dp")
    tp = mesh.get_group("tp") if "tp" in mesh.mesh_dim_names else None
    weights = {}
    if isinstance(module, GPT):
        weights = {weight.name: weight for weight in weights_of(module.config)}
    elif tp is not None and any(e.cut_over for some in engine.extents.values() for e in some):
        raise CheckpointError(
            f"a {type(module).__name__} is sharded over tp, but course_lib knows how shards form "
            "logical tensors only for its own GPT; save this model without tensor parallelism"
        )
    shapes = {slot.name: tuple(slot.shape) for slot in engine.partition.slots()}
    tensors = {}
    for name, parameter in module.named_parameters():
        held_shape = shapes.get(name, tuple(parameter.shape))
        weight = weights.get(name)
        piece = None if weight is None else held(module, weight)
        shape = held_shape if weight is None else weight.shape
        alike = dp if engine.stage == 0 or name not in shapes else None
        dim = 0 if piece is None else piece.dim
        spans = None if held_shape == shape else piece.spans
        shares = tuple(_shares(engine, parameter, tp, alike))
        tensors[name] = Tensor(name, held_shape, shape, dim, spans, shares, weight)
    return tensors


def _shares(
    engine: Engine, parameter: nn.Parameter, tp: Group | None, dp: Group | None
) -> Iterator[tuple[int, int, int, int]]:
    for extent in engine.extents[parameter]:
        count, which = 1, 0
        copies = extent.holders or (None if extent.cut_over else tp)
        for group in (copies, dp):
            if group is not None:
                count, which = count * group.size(), which * group.size() + group.rank()
        yield extent.start, extent.stop, count, which


def stored_as(tensor: Tensor, box: Box) -> Iterator[tuple[str, Box, object, bool]]:
    """Yield a logical box as boxes of the stored tensors: (name, box in it, index of its rows
    within the given box, True if it is stored transposed)."""
    if tensor.weight is None:
        yield tensor.name, box, ..., False
        return
    first, start, stop = 0, box.offset[0], box.offset[0] + box.size[0]
    for part in tensor.weight.parts:
        a, b = max(start, first), min(stop, first + part.rows)
        if a < b:
            offset, size = (a - first, *box.offset[1:]), (b - a, *box.size[1:])
            turn = -1 if part.transposed else 1
            inner = Box(offset[::turn], size[::turn])
            yield part.name, inner, slice(a - start, b - start), part.transposed
        first += part.rows


def stored_shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return {tensor in the files: (its parameter, its shape in the files)}."""
    shapes = {}
    for name, tensor in tensors.items():
        if tensor.weight is None:
            shapes[name] = name, tensor.shape
        else:
            parts = tensor.weight.parts
            shapes |= {part.name: (name, part.shape(tensor.weight)) for part in parts}
    return shapes


def buffers_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a module's state_dict that are not parameters."""
    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    state = module.state_dict(keep_vars=True)
    return {k: x for k, x in state.items() if k not in names and isinstance(x, torch.Tensor)}
