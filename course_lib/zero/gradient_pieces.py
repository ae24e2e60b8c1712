"""This rank's gradients as parts of the logical gradients, for a norm without double counting.

A shard of a flat bucket may overlap both a part that is sharded over tp and a replicated part.
Lesson 09 needs this to clip, and lesson 08 derives the norm.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from course_lib.collectives.call import Group
from course_lib.meta import numbers
from course_lib.norms import Piece
from course_lib.step.pieces import pieces_of
from course_lib.tensor_parallel.extents import Extent
from course_lib.zero.shards import Copies


def gradient_pieces(
    shards: Copies, extents: Mapping[nn.Parameter, list[Extent]], dp: Group | None
) -> list[Piece]:
    """Return every gradient of this rank, in pieces; `dp` is the axis of the shards, or None if
    nothing is sharded."""
    over = () if dp is None else (dp,)
    return [
        logical
        for piece, part in shards.parts()
        if part.grad is not None
        for logical in pieces_of(
            part.grad.reshape(-1), piece.start, extents[piece.slot.parameter], over
        )
    ]


def not_finite(shards: Copies) -> list[str]:
    """Return the parameters whose gradient on this rank is NaN or infinite."""
    return [
        piece.slot.name
        for piece, part in shards.parts()
        if part.grad is not None and not numbers(part.grad.isfinite().all(), True)
    ]
