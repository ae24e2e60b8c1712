"""The ten verbs, which work out of place except with `donated` or `into`. With async_op=True, all
except the barrier return a handle.

A piece is one rank's part of a tensor that is split along `dim`. Pieces may be uneven. Lesson 01
derives the ring algorithm of all_reduce, all_gather and reduce_scatter, and each one's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.call import (
    Group,
    check_into,
    check_member,
    check_own_piece,
    check_peer,
    check_whole,
    chunk_sizes,
    piece_sizes,
    size_and_rank,
    verb,
    with_dims,
    without_history,
)
from course_lib.collectives.reductions import reduction
from course_lib.collectives.transport import (
    all_gather_single,
    deliver,
    dim_back,
    dim_first,
    exchange,
    from_host,
    on_wire,
    pass_along,
    reduce_scatter_single,
    row_bytes,
    uses_gloo,
)


def all_reduce(
    x: Tensor, group: Group, op: str = "sum", *, donated: bool = False, async_op: bool = False
):
    """Reduce the x of all ranks, and return the result on every rank.

    With `donated`, the caller does not read x again, so the result may overwrite it.
    """
    check_member(group)
    x = without_history(x, "all_reduce")
    torch_op, _ = reduction(op)
    if x.dtype == torch.bool:  # gloo adds bytes, so two Trues would give an invalid 2
        torch_op, _ = reduction({"sum": "max", "product": "min"}.get(op, op))
    with verb("all_reduce", x, group):
        fresh = x.contiguous() if donated else x.clone(memory_format=torch.contiguous_format)
        out, bring_back = on_wire(fresh, "all_reduce", group)
        work = dist.all_reduce(out, torch_op, group, async_op=async_op)
        return deliver(work, lambda: bring_back(out), async_op)


def all_gather(
    x: Tensor,
    group: Group,
    dim: int = 0,
    sizes: Sequence[int] | None = None,
    *,
    into: Tensor | None = None,
    async_op: bool = False,
):
    """Join all pieces along `dim` in rank order, on every rank.

    `sizes` are the pieces' lengths along `dim`; by default all are equal. `into` is contiguous
    memory for the result, separate from x, and requires equal pieces joined along dim 0.
    """
    n, rank = size_and_rank(group)
    piece = dim_first(with_dims(x, "all_gather"), dim)  # (own, …)
    sizes = piece_sizes(sizes, [piece.shape[0]] * n, "all_gather")
    check_own_piece(piece, sizes, rank, "all_gather", dim)
    if into is not None:
        check_into(into, piece, sizes, dim)
    with verb("all_gather", x, group, sizes=[s * row_bytes(piece) for s in sizes]):
        piece, bring_back = on_wire(piece, "all_gather", group)
        ready = into is not None and into.device == piece.device
        out = into if ready else piece.new_empty((sum(sizes), *piece.shape[1:]))
        if len(set(sizes)) == 1:
            work = all_gather_single(out, piece, group, async_op=async_op)
        else:  # gloo's all-gather refuses uneven pieces, so each rank sends its own to all
            copies = piece.repeat(n, *[1] * (piece.dim() - 1))
            work = exchange(out, copies, sizes, [sizes[rank]] * n, group, async_op)

        def finish() -> Tensor:
            if into is None:
                return dim_back(bring_back(out), dim)
            return into if ready else from_host(out, into)

        return deliver(work, finish, async_op)


def reduce_scatter(
    x: Tensor,
    group: Group,
    dim: int = 0,
    sizes: Sequence[int] | None = None,
    op: str = "sum",
    *,
    async_op: bool = False,
):
    """Reduce all ranks' x and give every rank its own piece of the result along `dim`.

    `sizes` are the lengths of the pieces; by default x is split as torch.chunk would split it.
    """
    torch_op, reduce_local = reduction(op)
    n, rank = size_and_rank(group)
    whole = dim_first(with_dims(x, "reduce_scatter"), dim)  # (whole, …)
    sizes = piece_sizes(sizes, chunk_sizes(whole.shape[0], n), "reduce_scatter")
    check_whole(whole, sizes, "reduce_scatter", dim)
    length = sizes[rank]
    with verb("reduce_scatter", x, group, sizes=[s * row_bytes(whole) for s in sizes]):
        whole, bring_back = on_wire(whole, "reduce_scatter", group)
        if len(set(sizes)) == 1 and not uses_gloo(whole, group):
            out = whole.new_empty((length, *whole.shape[1:]))
            work = reduce_scatter_single(out, whole, torch_op, group, async_op=async_op)
            return deliver(work, lambda: dim_back(bring_back(out), dim), async_op)
        # gloo's own reduce-scatter sends as much as an all-reduce. Sending each rank its piece and
        # reducing on arrival sends half of that. Uneven pieces use the same route on every backend.
        arrived = whole.new_empty((n * length, *whole.shape[1:]))
        work = exchange(arrived, whole, [length] * n, sizes, group, async_op)

        def finish() -> Tensor:
            pieces = arrived.view(n, length, *arrived.shape[1:])  # (source rank, length, …)
            return dim_back(bring_back(reduce_local(pieces)), dim)

        return deliver(work, finish, async_op)


def broadcast(x: Tensor, group: Group, src: int = 0, *, async_op: bool = False):
    """Copy x from rank `src` of the group to every rank; all ranks pass a tensor of the same shape.

    On gloo with three or more ranks, the asynchronous form uses gloo's tree, whose root sends x
    more than once. The synchronous form passes x along a chain unless x is on a GPU.
    """
    n, rank = size_and_rank(group, src, "src")
    x = without_history(x, "broadcast")
    with verb("broadcast", x, group, root=src):
        fresh = x.clone(memory_format=torch.contiguous_format)
        out, bring_back = on_wire(fresh, "broadcast", group)
        if out.is_cuda or not uses_gloo(out, group) or async_op or n < 3:
            work = dist.broadcast(out, group=group, group_src=src, async_op=async_op)
            return deliver(work, lambda: bring_back(out), async_op)
        pass_along(out, group, steps=(rank - src) % n)
        return bring_back(out)


def scatter(
    x: Tensor | None,
    group: Group,
    src: int = 0,
    dim: int = 0,
    sizes: Sequence[int] | None = None,
    *,
    like: Tensor | None = None,
    async_op: bool = False,
):
    """Split x of rank `src` along `dim`, as reduce_scatter does; every rank gets its piece.

    The other ranks pass None for x. As `like` they pass any tensor with the shape, dtype and device
    of the full tensor, because no shape is sent.
    """
    n, rank = size_and_rank(group, src, "src")
    tensor = x if rank == src else like
    if tensor is None:
        missing = "x, the tensor to split" if rank == src else "like=, a tensor of x's shape"
        raise ValueError(f"scatter from rank {src}: rank {rank} must pass {missing}")
    whole = with_dims(tensor, "scatter").movedim(dim, 0)  # (whole, …)
    sizes = piece_sizes(sizes, chunk_sizes(whole.shape[0], n), "scatter")
    check_whole(whole, sizes, "scatter", dim)
    sent = sizes if rank == src else [0] * n
    received = [sizes[rank] if r == src else 0 for r in range(n)]
    in_bytes = [s * row_bytes(whole) for s in sizes]
    with verb("scatter", tensor if rank == src else None, group, sizes=in_bytes, root=src):
        outgoing, bring_back = on_wire(whole[: sum(sent)].contiguous(), "scatter", group)
        out = outgoing.new_empty((sizes[rank], *whole.shape[1:]))
        work = exchange(out, outgoing, received, sent, group, async_op)
        return deliver(work, lambda: dim_back(bring_back(out), dim), async_op)


def gather(
    x: Tensor,
    group: Group,
    dst: int = 0,
    dim: int = 0,
    sizes: Sequence[int] | None = None,
    *,
    async_op: bool = False,
):
    """Join all pieces along `dim` on rank `dst`, as all_gather does; the other ranks get None."""
    n, rank = size_and_rank(group, dst, "dst")
    piece = dim_first(with_dims(x, "gather"), dim)  # (own, …)
    sizes = piece_sizes(sizes, [piece.shape[0]] * n, "gather")
    check_own_piece(piece, sizes, rank, "gather", dim)
    sent = [sizes[rank] if r == dst else 0 for r in range(n)]
    received = sizes if rank == dst else [0] * n
    with verb("gather", x, group, sizes=[s * row_bytes(piece) for s in sizes], root=dst):
        piece, bring_back = on_wire(piece, "gather", group)
        out = piece.new_empty((sum(received), *piece.shape[1:]))
        work = exchange(out, piece, received, sent, group, async_op)

        def finish() -> Tensor | None:
            return dim_back(bring_back(out), dim) if rank == dst else None

        return deliver(work, finish, async_op)


def all_to_all(
    pieces: Sequence[Tensor],
    group: Group,
    *,
    like: Sequence[Tensor] | None = None,
    async_op: bool = False,
):
    """Send piece i of every rank to rank i, which gets a list in the order of the source ranks.

    Pieces may differ in shape. If the piece received from a rank has a different shape than the
    piece sent to it, pass `like`: one tensor per rank, of which only the shape is used.
    """
    n, _ = size_and_rank(group)
    like = list(pieces) if like is None else list(like)
    if len(pieces) != n or len(like) != n:
        raise ValueError(
            f"all_to_all among {n} ranks takes {n} pieces, one per rank, but got {len(pieces)}"
            + (f" with {len(like)} shapes in like=" if len(like) != len(pieces) else "")
        )
    kinds = {str(piece.dtype) for piece in pieces}
    if len(kinds) > 1:
        raise ValueError(
            f"all_to_all takes pieces of one dtype, but got {', '.join(sorted(kinds))}"
        )
    outgoing = torch.cat([without_history(piece, "all_to_all").reshape(-1) for piece in pieces])
    sent = [piece.numel() for piece in pieces]
    received = [shape.numel() for shape in like]
    in_bytes = [count * outgoing.element_size() for count in sent]
    with verb("all_to_all", outgoing, group, sizes=in_bytes):
        outgoing, bring_back = on_wire(outgoing, "all_to_all", group)
        out = outgoing.new_empty(sum(received))
        work = exchange(out, outgoing, received, sent, group, async_op)

        def finish() -> list[Tensor]:
            parts = bring_back(out).split(received)
            return [part.view(model.shape) for part, model in zip(parts, like, strict=True)]

        return deliver(work, finish, async_op)


def send(x: Tensor, group: Group, dst: int, *, async_op: bool = False):
    """Send x to rank `dst` of the group, which must call recv."""
    check_peer(group, dst, "dst")
    with verb("send", x, group, root=dst):
        outgoing, _ = on_wire(without_history(x, "send").contiguous(), "send", group)
        work = dist.isend(outgoing, group=group, group_dst=dst)

        def finish(keep: Tensor = outgoing) -> None:
            """Keep the buffer alive until the transport has read it."""

        return deliver(work, finish, async_op)


def recv(
    shape: Sequence[int],
    group: Group,
    src: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    async_op: bool = False,
):
    """Receive a tensor of the given shape and dtype from rank `src`, which must call send."""
    check_peer(group, src, "src")
    with verb("recv", None, group, root=src):
        out, bring_back = on_wire(
            torch.empty(tuple(shape), dtype=dtype, device=device), "recv", group
        )
        work = dist.irecv(out, group=group, group_src=src)
        return deliver(work, lambda: bring_back(out), async_op)


def barrier(group: Group) -> None:
    """Wait until every rank of the group has called this function."""
    check_member(group)
    with verb("barrier", None, group):
        dist.barrier(group)
