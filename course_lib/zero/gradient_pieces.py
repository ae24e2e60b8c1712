"""This rank's gradients as parts of the logical ones, for a norm that counts each element once.

A shard of a flat bucket may lie across a part that is cut over tp and one that is a copy there.
Lesson 09 needs it to clip; lesson 08 derives the norm.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from course_lib.collectives.call import Group
from course_lib.norms import Piece
from course_lib.tensor_parallel.extents import Extent
from course_lib.zero.shards import Copies


def gradient_pieces(
    shards: Copies, extents: Mapping[nn.Parameter, list[Extent]], over_dp: tuple[Group, ...]
) -> list[Piece]:
    """The pieces of all gradients of this rank; `over_dp` is the axis that shards are cut over."""
    pieces = []
    for piece, part in shards.parts():
        if part.grad is None:
            continue
        flat = part.grad.reshape(-1)
        for extent in extents[piece.slot.parameter]:
            a, b = max(piece.start, extent.start), min(piece.stop, extent.stop)
            if a < b:
                x = flat[a - piece.start : b - piece.start]
                pieces.append(Piece(x, over_dp + extent.cut_over, None, extent.holders))
    return pieces


def not_finite(shards: Copies) -> list[str]:
    """The parameters of which this rank has a gradient that is NaN or infinite."""
    return [
        piece.slot.name
        for piece, part in shards.parts()
        if part.grad is not None and not bool(part.grad.isfinite().all())
    ]
