"""Which part of every logical tensor this rank has, and which part of that it answers for.

What several ranks hold alike, replicas over dp or copies over tp, they share out evenly, so that
each element is written by one of them, and counted in one's checksum. Lesson 14.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.collectives.call import Group
from course_lib.gpt import GPT
from course_lib.layout import Box, flat_boxes
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.names import Stored, Weight, held, weights_of
from course_lib.zero import Engine
from course_lib.zero.partition import through


class Part(NamedTuple):
    """Elements `start` to `stop` of a rank's tensor, and the boxes of the logical one that they
    fill, in order; `counts`: this rank writes them."""

    start: int
    boxes: tuple[Box, ...]
    counts: bool

    @property
    def stop(self) -> int:
        return self.start + sum(box.numel for box in self.boxes)


class Tensor(NamedTuple):
    """A parameter as this rank has it: its own shape, the logical one, and how they belong."""

    name: str
    own: tuple[int, ...]
    shape: tuple[int, ...]
    dim: int  # along which the rank has these spans of the logical tensor
    spans: tuple[tuple[int, int], ...] | None  # None: all of it
    shares: tuple[tuple[int, int, int, int], ...]  # start, stop, how many hold it, which of them
    weight: Weight | None  # how Hugging Face stores it

    @property
    def padded(self) -> bool:
        """Whether this rank's tensor has elements that the logical one has not."""
        return sum(stop - start for start, stop, _, _ in self.shares) < math.prod(self.own)

    def parts(self, start: int, stop: int) -> Iterator[Part]:
        """Elements `start` to `stop` of the rank's tensor; padding is in no part."""
        for first, last, count, which in self.shares:
            length = last - first
            edges = [first + length * k // count for k in (0, which, which + 1, count)]
            for a, b, counts in zip(edges, edges[1:], (False, True, False), strict=False):
                a, b = max(a, start), min(b, stop)
                if a < b:
                    yield from self._boxed(a, b, counts)

    def _boxed(self, start: int, stop: int, counts: bool) -> Iterator[Part]:
        at = start
        for box in flat_boxes(self.own, start, stop):
            whole = self.spans is None
            boxes = [box] if whole else through(box, self.dim, self.spans)
            if boxes:
                yield Part(at, tuple(boxes), counts)
            at += box.numel


def tensors_of(engine: Engine, mesh: DeviceMesh) -> dict[str, Tensor]:
    """Every parameter of the engine's model by name, those that are frozen too."""
    module, dp = engine.module, mesh.get_group("dp")
    tp = mesh.get_group("tp") if "tp" in mesh.mesh_dim_names else None
    weights = {}
    if isinstance(module, GPT):
        weights = {weight.name: weight for weight in weights_of(module.config)}
    elif tp is not None and any(e.cut_over for some in engine.extents.values() for e in some):
        raise CheckpointError(
            f"a {type(module).__name__} is cut over tp, and only of a course_lib GPT is it known "
            "how its parts make the logical tensors; save it without tensor parallelism"
        )
    shapes = {slot.name: tuple(slot.shape) for slot in engine.partition.slots()}
    found = {}
    for name, parameter in module.named_parameters():
        own = shapes.get(name, tuple(parameter.shape))
        weight = weights.get(name)
        piece = None if weight is None else held(module, weight)
        shape = own if weight is None else weight.shape
        alike = dp if engine.stage == 0 or name not in shapes else None
        found[name] = Tensor(
            name,
            own,
            shape,
            0 if piece is None else piece.dim,
            None if piece is None or own == shape else piece.spans,
            tuple(_shares(engine, parameter, own, tp, alike)),
            weight,
        )
    return found


def _shares(
    engine: Engine, parameter: nn.Parameter, own: Sequence[int], tp: Group | None, dp: Group | None
) -> Iterator[tuple[int, int, int, int]]:
    for extent in engine.extents[parameter]:
        count, which = 1, 0
        copies = extent.holders or (None if extent.cut_over else tp)
        for group in (copies, dp):
            if group is not None:
                count, which = count * group.size(), which * group.size() + group.rank()
        yield extent.start, extent.stop, count, which


def stored_as(tensor: Tensor, box: Box) -> Iterator[tuple[Stored | None, Box, int, int]]:
    """A logical box in the tensors that Hugging Face stores: (tensor, box in our order of dims,
    first and last row of it within the given box)."""
    weight = tensor.weight
    if weight is None:
        yield None, box, 0, box.size[0] if box.size else 1
        return
    first, start, stop = 0, box.offset[0], box.offset[0] + box.size[0]
    for part in weight.parts:
        a, b = max(start, first), min(stop, first + part.rows)
        if a < b:
            inner = Box((a - first, *box.offset[1:]), (b - a, *box.size[1:]))
            yield part, inner, a - start, b - start
        first += part.rows


def turned(box: Box) -> Box:
    """The same box of the transposed tensor."""
    return Box(box.offset[::-1], box.size[::-1])
