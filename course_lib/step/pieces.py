"""The gradients of a sharded model as pieces of logical gradients: shards, replicas, padding.

The layers describe their pieces, and `norms` counts each element once. Lesson 08 derives it.
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
    """Return the groups of a mesh, tp before dp, or no group for None, which means one process."""
    if mesh is None:
        return []
    tp = axis(mesh, "tp")
    return [tp, axis(mesh, "dp")] if "dp" in mesh.mesh_dim_names else [tp]


def gradient_pieces(model: nn.Module, mesh: DeviceMesh | None) -> list[Piece]:
    """Return every gradient once, for `norms.norm` and `norms.clip` with the mesh's groups.

    Gradients must be summed over dp already, so that they are replicated over it.
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
    """(n,) elements of a gradient, starting at its parameter's element `first` -> one piece for
    each extent that they overlap, which is sharded over the groups in `over` too."""
    stop = first + gradient.numel()
    for part in parts:
        a, b = max(first, part.start), min(stop, part.stop)
        if a < b:
            x = gradient[a - first : b - first]
            yield Piece(x, over + part.cut_over, None, part.holders)
