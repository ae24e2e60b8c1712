"""Ring attention: queries stay, keys and values circulate, and the softmax is computed online.

Each rank holds some positions of the sequence. A block of keys and values is sent to every rank in
turn, and contributions are scaled by the largest score so far (online softmax). In the backward
pass it circulates again with its gradients. Appendix E4 derives the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from course_lib.collectives import recv, send
from course_lib.collectives.call import Group, size_and_rank
from course_lib.extras.axes.places import check_places


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, places: Sequence[Tensor]
) -> Tensor:
    """Compute causal attention of this rank's queries (b, heads, own, d) over all keys and values.

    k and v are (b, kv heads, own, d); each of their heads serves equally many query heads.
    `places[r]` are the positions of rank r, from `stretches` or `zigzag`.
    """
    n, rank = size_and_rank(group)
    check_places(places, n)
    own = len(places[rank])
    if {q.shape[2], k.shape[2], v.shape[2]} != {own} or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"rank {rank} has {own} positions, but q {tuple(q.shape)}, k {tuple(k.shape)} and v "
            f"{tuple(v.shape)}: each must be (b, heads, {own}, d), and k's heads must divide q's"
        )
    return _Ring.apply(q, k, v, group, [one.to(q.device) for one in places])


class _Ring(Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, group: Group, places: list[Tensor]) -> Tensor:
        grouped = _grouped(q, k)  # (b, kv, g, own, d)
        largest = grouped.new_full((*grouped.shape[:-1], 1), -torch.inf)  # score so far
        total, out = torch.zeros_like(largest), torch.zeros_like(grouped)
        for block in _round(torch.stack((k, v)), group, places):
            scores = _scores(grouped, block, places[group.rank()])
            if scores is None:
                continue
            # This rank's block comes first. There each token sees itself, so `largest` is finite
            # from then on, even if a query sees no key of a later block.
            higher = torch.maximum(largest, scores.amax(-1, keepdim=True))
            weights, shrunk = (scores - higher).exp(), (largest - higher).exp()
            total = total * shrunk + weights.sum(-1, keepdim=True)
            out = out * shrunk + weights @ block.v
            largest = higher
        out = out / total
        ctx.save_for_backward(q, k, v, out, largest + total.log())
        ctx.group, ctx.places = group, places
        return out.view(q.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        q, k, v, out, log_total = ctx.saved_tensors
        group, places = ctx.group, ctx.places
        n, rank = size_and_rank(group)
        grouped, owed = _grouped(q, k), _grouped(gradient, k)
        inner = (owed * out).sum(-1, keepdim=True)  # (b, kv, g, own, 1)
        dq, home, travelling = torch.zeros_like(grouped), None, None
        for hop, block in enumerate(_round(torch.stack((k, v)), group, places)):
            shares = torch.zeros_like(block.pair)  # of the block's owner: dk, dv
            scores = _scores(grouped, block, places[rank])
            if scores is not None:
                weights = (scores - log_total).exp()
                bent = weights * (owed @ block.v.mT - inner) * q.shape[-1] ** -0.5
                dq += bent @ block.k
                shares[0] = (bent.mT @ grouped).sum(2)
                shares[1] = (weights.mT @ owed).sum(2)
            if hop == 0:
                home = shares  # of this rank's own block: they stay
                continue
            travelling = shares if travelling is None else travelling + shares
            # Send to the next rank, which gets the same block next, or owns it after the last hop.
            coming = (rank - 1 - hop) % n
            travelling = _end_swap(_begin_swap(travelling, _shape(k, places[coming]), group))
        dk, dv = home if travelling is None else home + travelling
        return dq.view(q.shape), dk, dv, None, None


class _Block(NamedTuple):
    """The keys and values of one rank, while they are on this rank."""

    pair: Tensor  # (2, b, kv, theirs, d)
    places: Tensor

    @property
    def k(self) -> Tensor:
        return self.pair[0].unsqueeze(2)  # (b, kv, 1, theirs, d)

    @property
    def v(self) -> Tensor:
        return self.pair[1].unsqueeze(2)


def _round(pair: Tensor, group: Group, places: Sequence[Tensor]) -> Iterator[_Block]:
    """Yield this rank's block, then the previous rank's, and so on. Each is forwarded before it is
    used, so that the next block arrives during the computation."""
    n, rank = size_and_rank(group)
    for hop in range(n):
        owner = (rank - hop) % n
        if hop == n - 1:
            yield _Block(pair, places[owner])
            return
        handles = _begin_swap(pair, _shape(pair[0], places[owner - 1]), group)
        yield _Block(pair, places[owner])
        pair = _end_swap(handles)


def _begin_swap(pair: Tensor, shape: Sequence[int], group: Group) -> list:
    """Start sending to the next rank and receiving from the previous one. Odd ranks receive first,
    so that messages that block until they are received, as on NCCL, cannot deadlock."""
    n, rank = size_and_rank(group)
    after, before = (rank + 1) % n, (rank - 1) % n
    way = {"dtype": pair.dtype, "device": pair.device, "async_op": True}
    if rank % 2:
        received = recv(shape, group, before, **way)
        return [send(pair, group, after, async_op=True), received]
    return [send(pair, group, after, async_op=True), recv(shape, group, before, **way)]


def _end_swap(handles: list) -> Tensor:
    sent, received = handles
    pair = received.wait()
    sent.wait()
    return pair


def _shape(k: Tensor, places: Tensor) -> tuple[int, ...]:
    """Return the shape of the keys and values of a rank with these positions."""
    return (2, *k.shape[:2], len(places), k.shape[3])


def _grouped(q: Tensor, k: Tensor) -> Tensor:
    """(b, heads, s, d) -> (b, kv, g, s, d), the g query heads of each key/value head."""
    b, heads, s, d = q.shape
    return q.reshape(b, k.shape[1], heads // k.shape[1], s, d)


def _scores(q: Tensor, block: _Block, own: Tensor) -> Tensor | None:
    """(b, kv, g, own, theirs) scores, -inf for keys after the query; None if all keys are later."""
    later = block.places > own[:, None]  # (own, theirs)
    if later.all():
        return None
    return (q @ block.k.mT * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf)
