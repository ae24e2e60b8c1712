"""The gradients of a cut model as pieces of logical ones: what is cut, copied, padded, held twice.

Read off the layers themselves, so that no rule of cutting is written a second time; `norms` counts
each logical number once with it. Lesson 08 derives it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.collectives.call import Group
from course_lib.norms import Piece
from course_lib.tensor_parallel.embedding import (
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
)
from course_lib.tensor_parallel.linear import ColumnParallelLinear
from course_lib.tensor_parallel.parallelize import replicated


def axes(mesh: DeviceMesh | None) -> list[Group]:
    """The groups of a mesh, tp before dp; without a mesh there is one process, and none."""
    if mesh is None:
        return []
    names = mesh.mesh_dim_names or ()
    if "tp" not in names:
        raise ValueError(
            f"the mesh has the axes {', '.join(names) or '(without names)'} and no axis 'tp'; make "
            "it with ranks.mesh(me, dp=…, tp=…)"
        )
    return [mesh.get_group(name) for name in ("tp", "dp") if name in names]


def gradient_pieces(model: nn.Module, mesh: DeviceMesh | None) -> list[Piece]:
    """Every gradient there is, once, for `norms.norm` and `norms.clip` with the mesh's groups.

    Gradients have to be summed over dp already: along it they are copies.
    """
    tp = axes(mesh)[:1]
    whole = {id(p) for _, p in replicated(model)}
    seen: set[int] = set()  # a tied weight is two modules' and one parameter
    pieces: list[Piece] = []
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in seen or parameter.grad is None:
                continue
            seen.add(id(parameter))
            over = () if id(parameter) in whole else tuple(tp)
            pieces += _pieces(model, module, parameter.grad, over)
    return pieces


def _pieces(
    model: nn.Module, module: nn.Module, grad: Tensor, over: tuple[Group, ...]
) -> Iterator[Piece]:
    if isinstance(module, VocabularyParallelHead):
        module = model.tokens  # which is cut alike
    if isinstance(module, VocabularyParallelEmbedding):
        real = max(0, min(module.stop, module.vocabulary) - module.start)
        yield Piece(grad, over, real * module.hidden)
    elif isinstance(module, ColumnParallelLinear) and module.shared is not None:
        start, stop, holders = module.shared  # rows of keys and values that other ranks hold too
        yield Piece(grad[:start], over)
        yield Piece(grad[start:stop], over, None, holders)
        yield Piece(grad[stop:], over)
    else:
        yield Piece(grad, over)
