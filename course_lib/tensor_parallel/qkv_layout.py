"""Where the heads lie in a weight, and which of them a rank holds.

Published weights keep q, k and v in four ways; in each, a head is a block of `head_size` rows, and
a rank's share is a list of spans of rows. Our own `qkv` is the joined one. Lesson 05 derives the
shares; lesson 08 reads checkpoints with them.

    separate   three weights: all q, all k, all v               Llama
    joined     one weight, rows [all q | all k | all v]         ours; GPT-2, but for the next line
    conv1d     the joined one transposed, (h, rows)             GPT-2's c_attn
    grouped    for each kv head its q heads, its k, its v       where a straight cut is a right one
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.layout import heads as spread
from course_lib.layout import kv_heads as spread_kv

Span = tuple[int, int]


class Share(NamedTuple):
    """The heads of one rank: query heads from start to stop, key/value heads, and who else has
    those: the ranks of the group that hold the same key/value heads, this one among them."""

    q: Span
    kv: Span
    holders: tuple[int, ...]

    @property
    def heads(self) -> int:
        return self.q[1] - self.q[0]

    @property
    def kv_heads(self) -> int:
        return self.kv[1] - self.kv[0]


def shares(heads: int, kv_heads: int, n: int) -> list[Share]:
    """Which heads each of n ranks holds: a query head always with the key/value head it reads.

    With as many kv heads as ranks or more, these are spread as evenly as they go, and each brings
    its query heads. With fewer, each is held by n / kv_heads ranks that share out its query heads.
    """
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise ValueError(
            f"{heads} query heads cannot be shared out over {kv_heads} key/value heads: each of "
            "these serves equally many, so the one number has to be a multiple of the other"
        )
    spread(heads, n)  # refuses more ranks than heads
    each = heads // kv_heads
    spans = spread_kv(kv_heads, n)
    if kv_heads >= n:
        return [Share((a * each, b * each), (a, b), (rank,)) for rank, (a, b) in enumerate(spans)]
    copies, found = n // kv_heads, []
    for rank, (a, b) in enumerate(spans):
        counts, place = spread(each, copies), rank % copies
        start = a * each + sum(counts[:place])
        holders = tuple(range(rank - place, rank - place + copies))
        found.append(Share((start, start + counts[place]), (a, b), holders))
    return found


def separate_rows(share: Share, head_size: int) -> tuple[Span, Span, Span]:
    """The rows of q's weight, of k's and of v's that a rank takes; the last two are the same."""
    kv = _rows(share.kv, head_size)
    return _rows(share.q, head_size), kv, kv


def joined_rows(share: Share, heads: int, kv_heads: int, head_size: int) -> list[Span]:
    """The same in one weight [all q | all k | all v]; in GPT-2's Conv1D they are its columns."""
    q, k, v = separate_rows(share, head_size)
    after_q, after_k = heads * head_size, (heads + kv_heads) * head_size
    return [q, (after_q + k[0], after_q + k[1]), (after_k + v[0], after_k + v[1])]


def grouped_rows(share: Share, heads: int, kv_heads: int, head_size: int) -> list[Span]:
    """The same where each kv head's q heads, k and v follow one another; in order q, k, v."""
    each = heads // kv_heads
    q_spans, k_spans, v_spans = [], [], []
    for kv in range(*share.kv):
        first = kv * (each + 2)  # the block in which this kv head's q heads begin
        own = range(max(share.q[0], kv * each), min(share.q[1], (kv + 1) * each))
        q_spans.append(_rows((first + own.start % each, first + own.start % each + len(own)),
                             head_size))  # fmt: skip
        k_spans.append(_rows((first + each, first + each + 1), head_size))
        v_spans.append(_rows((first + each + 1, first + each + 2), head_size))
    return q_spans + k_spans + v_spans


def join(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Three weights (or biases) as one with rows [all q | all k | all v]."""
    return torch.cat((q, k, v))


def separate(joined: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The three weights (or biases) in a joined one."""
    size = head_size_of(joined, heads, kv_heads)
    return joined.split([heads * size, kv_heads * size, kv_heads * size])


def head_size_of(weight: Tensor, heads: int, kv_heads: int) -> int:
    """How many rows a head has in a weight of all q, k and v, or a clear refusal."""
    blocks = heads + 2 * kv_heads
    if weight.shape[0] % blocks:
        raise ValueError(
            f"a joined weight of {heads} query heads and {kv_heads} key/value heads has a multiple "
            f"of {heads} + 2·{kv_heads} = {blocks} rows, and this one has {weight.shape[0]}; is it "
            "transposed, as GPT-2's Conv1D keeps it?"
        )
    return weight.shape[0] // blocks


def from_conv1d(stored: Tensor) -> Tensor:
    """GPT-2 keeps a weight as (inputs, outputs) where torch.nn.Linear has (outputs, inputs)."""
    return stored.t().contiguous() if stored.dim() == 2 else stored


def to_conv1d(weight: Tensor) -> Tensor:
    return weight.t().contiguous() if weight.dim() == 2 else weight


def from_grouped(stored: Tensor, heads: int, kv_heads: int) -> Tensor:
    """The joined weight (or bias) of one that goes kv head by kv head."""
    each, size = heads // kv_heads, head_size_of(stored, heads, kv_heads)
    blocks = stored.view(kv_heads, each + 2, size, *stored.shape[1:])
    parts = (blocks[:, :each], blocks[:, each : each + 1], blocks[:, each + 1 :])
    return torch.cat([part.reshape(-1, *stored.shape[1:]) for part in parts])


def to_grouped(joined: Tensor, heads: int, kv_heads: int) -> Tensor:
    each, rest = heads // kv_heads, joined.shape[1:]
    size = head_size_of(joined, heads, kv_heads)
    q, k, v = separate(joined, heads, kv_heads)
    q = q.view(kv_heads, each, size, *rest)
    k, v = (part.view(kv_heads, 1, size, *rest) for part in (k, v))
    return torch.cat((q, k, v), dim=1).reshape(joined.shape)


def _rows(heads: Span, head_size: int) -> Span:
    return heads[0] * head_size, heads[1] * head_size
