"""The saving of weights: each tensor is gathered to one rank, which writes and then frees it.

No rank ever holds the full model. The files do not depend on the sharding, and transformers can
load them. Lesson 08.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from course_lib import collectives
from course_lib.collectives.call import Group
from course_lib.gpt import GPT
from course_lib.pretrained.config import to_transformers
from course_lib.pretrained.header import DTYPES, CheckpointError
from course_lib.pretrained.load import groups_of, together
from course_lib.pretrained.names import Weight, WeightPiece, check_model, held, places, weights_of
from course_lib.pretrained.writer import Kinds, Writer
from course_lib.tensor_parallel.embedding import VocabularyParallelEmbedding


def save(
    model: GPT,
    folder: str | os.PathLike,
    mesh: DeviceMesh | None = None,
    *,
    config: Mapping | None = None,
    shard_bytes: float = 5e9,
) -> None:
    """Write a checkpoint as transformers does; every rank of the mesh must call this.

    Rank 0 writes. `config` adds keys to config.json, for example those of the original checkpoint.
    The folder's old content is replaced only after everything is written. If writing fails, the old
    content stays, and every rank raises.
    """
    groups, what = groups_of(model, mesh), f"saving to {folder}"
    with together(groups, what):
        check_model(model)
        group = _cut_over(model, mesh)
        weights = weights_of(model.config)
        kinds = _kinds(model, weights)
        pieces = [held(model, weight) for weight in weights]
    first = all(one.rank() == 0 for one in groups)
    # Other replicas have the same elements, so they only learn the outcome.
    gathers = group is not None and all(
        one.rank() == 0 for one in groups if one.group_name != group.group_name
    )
    everyone = [pieces]
    if gathers:
        everyone = [pieces] * group.size()
        dist.all_gather_object(everyone, pieces, group=group)
    with contextlib.ExitStack() as stack:
        writer = None
        with together(groups, what):
            if first:
                keys = to_transformers(model.config, model.tokens.weight.dtype, config)
                for weight, ranks in zip(weights, zip(*everyone, strict=True), strict=True):
                    _check_covered(weight, ranks)
                writer = Writer(folder, kinds, keys, shard_bytes)
                stack.callback(writer.discard)
        for number, weight in enumerate(weights):
            ranks = [one[number] for one in everyone]
            parts = _gathered(model, weight, ranks, group if gathers else None)
            with together(groups, what):
                if writer is not None:
                    _write(writer, weight, ranks, parts)  # frees everything
            del parts
        with together(groups, what):
            if writer is not None:
                writer.finish()


def _cut_over(model: GPT, mesh: DeviceMesh | None) -> Group | None:
    """Return the group that the model is sharded over, if any; refuse several writers."""
    table = model.tokens
    if not isinstance(table, VocabularyParallelEmbedding):
        return None
    if mesh is None and table.group.size() != dist.get_world_size():
        raise CheckpointError(
            f"the model is sharded over {table.group.size()} of {dist.get_world_size()} ranks, so "
            "without mesh= each replica would write the same files; pass the mesh"
        )
    if mesh is not None and mesh.get_group("tp").group_name != table.group.group_name:
        raise CheckpointError("the model is sharded over tp of a different mesh; pass that mesh")
    return table.group


def _kinds(model: GPT, weights: Sequence[Weight]) -> Kinds:
    """Return the dtype and shape of every tensor that will be stored."""
    kinds = {}
    for weight in weights:
        own = model.get_parameter(weight.name)
        if own.is_meta or own.dtype not in DTYPES.values():
            trouble = "has no elements yet" if own.is_meta else f"is {own.dtype}"
            raise CheckpointError(f"{weight.name} {trouble}, so it cannot be saved")
        for part in weight.parts:
            kinds[part.name] = own.dtype, part.shape(weight)
    return kinds


def _gathered(
    model: GPT, weight: Weight, ranks: Sequence[WeightPiece], group: Group | None
) -> list[Tensor]:
    """Gather all ranks' pieces of a weight on rank 0; a replicated weight is not sent."""
    own = model.get_parameter(weight.name).detach()
    if group is None or all(piece == WeightPiece(0, ((0, weight.shape[0]),)) for piece in ranks):
        return [own]
    mine = ranks[group.rank()]
    flat = own.narrow(mine.dim, 0, mine.length).reshape(-1)  # without padding
    shapes = []
    for piece in ranks:
        shape = list(weight.shape)
        shape[piece.dim] = piece.length
        shapes.append(torch.Size(shape))
    joined = collectives.gather(flat, group, sizes=[shape.numel() for shape in shapes])
    flats = [] if joined is None else joined.split([shape.numel() for shape in shapes])
    return [flat.view(shape) for flat, shape in zip(flats, shapes, strict=False)]


def _write(
    writer: Writer, weight: Weight, ranks: Sequence[WeightPiece], pieces: Sequence[Tensor]
) -> None:
    """Assemble the bytes of each stored tensor in memory and write them."""
    dtype, buffers, views = pieces[0].dtype, {}, {}
    for part in weight.parts:
        shape = torch.Size(part.shape(weight))
        buffers[part.name] = bytearray(shape.numel() * dtype.itemsize)
        stored = torch.frombuffer(buffers[part.name], dtype=dtype).view(shape)
        views[part.name] = part.turned(stored)  # in our order of dims
    for piece, numbers in zip(ranks, pieces, strict=False):
        for part, start, stop, at in places(weight, piece):
            here = views[part.name].narrow(piece.dim, start, stop - start)
            here.copy_(numbers.narrow(piece.dim, at, stop - start))
    for name, numbers in buffers.items():
        writer.put(name, numbers)


def _check_covered(weight: Weight, ranks: Sequence[WeightPiece]) -> None:
    """Refuse to write a tensor if some of its elements are on no rank."""
    at = 0
    for start, stop in sorted(span for piece in ranks for span in piece.spans):
        if start > at:
            break
        at = max(at, stop)
    size = weight.shape[ranks[0].dim]
    if at != size:
        raise CheckpointError(
            f"{weight.name}: the ranks hold {at} of {size} along dim {ranks[0].dim} without a gap, "
            "so the model was sharded by a different plan. Use the same plan on all ranks"
        )
