"""The gradients of a cut model as pieces of logical ones: what is cut, copied, padded, held twice.

The layers say which is which, and `norms` counts each logical number once. Lesson 08 derives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.collectives.call import Group
from course_lib.norms import Piece
from course_lib.ranks import axis
from course_lib.tensor_parallel.extents import Extent, extents


def axes(mesh: DeviceMesh | None) -> list[Group]:
    """The groups of a mesh, tp before dp; without a mesh there is one process, and none."""
    if mesh is None:
        return []
    tp = axis(mesh, "tp")
    return [tp, axis(mesh, "dp")] if "dp" in mesh.mesh_dim_names else [tp]


def gradient_pieces(model: nn.Module, mesh: DeviceMesh | None) -> list[Piece]:
    """Every gradient there is, once, for `norms.norm` and `norms.clip` with the mesh's groups.

    Gradients have to be summed over dp already: along it they are copies.
    """
    pieces: list[Piece] = []
    for parameter, parts in extents(model, next(iter(axes(mesh)), None)).items():
        if parameter.grad is None:
            continue
        if not parameter.grad.is_contiguous():  # clipping reaches it through views
            parameter.grad = parameter.grad.contiguous()
        pieces += pieces_of(parameter.grad.view(-1), 0, parts)
    return pieces


def pieces_of(
    gradient: Tensor, first: int, parts: Iterable[Extent], over: tuple[Group, ...] = ()
) -> Iterator[Piece]:
    """(n,) elements of a gradient, from element `first` of its parameter on → a piece for each of
    the parameter's extents that they meet, cut over these groups besides."""
    stop = first + gradient.numel()
    for part in parts:
        a, b = max(first, part.start), min(stop, part.stop)
        if a < b:
            x = gradient[a - first : b - first]
            yield Piece(x, over + part.cut_over, None, part.holders)
