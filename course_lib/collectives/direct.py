"""all_gather and reduce_scatter of flat buffers, exchanged piece by piece without copies.

gloo's own all-gather and all-to-all copy their inputs and outputs. Here each rank exchanges pieces
with one rank after another, in the caller's own memory. Lesson 09 uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import verbs
from course_lib.collectives.call import Group, size_and_rank, verb, without_history
from course_lib.collectives.transport import all_gather_single, deliver, exchange, uses_gloo


def all_gather(buffer: Tensor, group: Group, *, async_op: bool = False):
    """Gather every rank's piece on every rank, in place. A rank's own piece is already at its place
    in the buffer. The caller must not touch the buffer until the call has completed."""
    n, rank = size_and_rank(group)
    pieces = in_pieces(buffer, n, "all_gather")  # (n, own)
    piece = pieces[rank]
    if buffer.is_cuda and uses_gloo(buffer, group):
        return verbs.all_gather(piece.clone(), group, into=pieces.view(-1), async_op=async_op)
    with verb("all_gather", piece, group, sizes=[piece.nbytes] * n):
        if n > 1 and uses_gloo(buffer, group):
            work = in_rounds(lambda to: piece, lambda source: pieces[source], group)
        else:
            work = all_gather_single(pieces.view(-1), piece, group, async_op=True)
        return deliver(work, lambda: buffer, async_op)


def reduce_scatter(buffer: Tensor, group: Group, *, async_op: bool = False):
    """Sum this rank's piece over all ranks into separate memory. The caller must not write to the
    buffer until the call has completed."""
    n, rank = size_and_rank(group)
    pieces = in_pieces(buffer, n, "reduce_scatter")  # (n, own)
    if n > 1 and (buffer.is_cuda or not uses_gloo(buffer, group)):
        return verbs.reduce_scatter(pieces.view(-1), group, async_op=async_op)
    with verb("reduce_scatter", buffer, group, sizes=[pieces[rank].nbytes] * n):
        if n == 1:  # one rank: its piece is the sum
            alone = torch.empty_like(own := pieces[0])
            work = exchange(alone, own, [own.numel()], [own.numel()], group, async_op)
            return deliver(work, lambda: alone, async_op)
        arrived = pieces.new_empty((n - 1, pieces.shape[1]))
        from_rank = [*arrived[:rank], pieces[rank], *arrived[rank:]]
        work = in_rounds(lambda to: pieces[to], lambda source: from_rank[source], group)

        def finish() -> Tensor:
            if n == 2:
                return arrived[0].add_(pieces[rank])
            # Numbers of 16 bits are rounded only once, at the end.
            wide = torch.promote_types(buffer.dtype, torch.float32)
            total = from_rank[0].to(wide, copy=True)
            for part in from_rank[1:]:
                total.add_(part)
            return total.to(buffer.dtype)

        return deliver(work, finish, async_op)


class Rounds:
    """The torch works of one verb call, which completes when all of them have completed."""

    def __init__(self, works: Sequence[dist.Work]):
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


def in_rounds(
    outgoing: Callable[[int], Tensor], incoming: Callable[[int], Tensor], group: Group
) -> Rounds:
    """Send `outgoing(r)` to every other rank r and receive `incoming(r)` from it. Round j sends to
    the rank j places ahead and receives from the rank j places behind."""
    n, rank = size_and_rank(group)
    works = []
    for j in range(1, n):
        to, source = (rank + j) % n, (rank - j) % n
        x, out = outgoing(to), incoming(source)
        received, sent = [0] * n, [0] * n
        received[source], sent[to] = out.numel(), x.numel()
        works.append(exchange(out, x, received, sent, group, async_op=True))
    return Rounds(works)


def in_pieces(buffer: Tensor, n: int, op: str) -> Tensor:
    """Split a flat buffer into n equal pieces, or raise if it cannot be split."""
    buffer = without_history(buffer, op)
    if buffer.dim() != 1 or buffer.numel() % n or not buffer.is_contiguous():
        raise ValueError(
            f"direct.{op} takes a flat contiguous buffer of n equal pieces for {n} ranks, but "
            f"got one of shape {tuple(buffer.shape)}; add padding at its end"
        )
    return buffer.view(n, -1)
