"""The positions of the heads in a weight, and the heads of each rank.

Our `qkv` is one weight with rows [all q | all k | all v]. A head is a block of `head_size` rows of
a part, and a rank's share is a list of row spans. Lesson 05 derives the shares.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.layout import heads as spread
from course_lib.layout import kv_heads as spread_kv

Span = tuple[int, int]


class Share(NamedTuple):
    """The heads of one rank: its query heads from start to stop, its key/value heads, and the ranks
    of the group (including itself) that hold the same key/value heads."""

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
    """Return the heads of each of n ranks; a query head is always with its key/value head.

    With at least as many kv heads as ranks, they are distributed evenly, each with its query heads.
    With fewer, n / kv_heads ranks hold each kv head and divide its query heads among them.
    """
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise ValueError(
            f"{heads} query heads cannot be divided among {kv_heads} key/value heads, because each "
            "serves equally many. Choose a number of query heads that is a multiple of it"
        )
    spread(heads, n)  # raises for more ranks than heads
    each = heads // kv_heads
    spans = spread_kv(kv_heads, n)
    if kv_heads >= n:
        return [Share((a * each, b * each), (a, b), (rank,)) for rank, (a, b) in enumerate(spans)]
    copies, by_rank = n // kv_heads, []
    for rank, (a, b) in enumerate(spans):
        counts, place = spread(each, copies), rank % copies
        start = a * each + sum(counts[:place])
        holders = tuple(range(rank - place, rank - place + copies))
        by_rank.append(Share((start, start + counts[place]), (a, b), holders))
    return by_rank


def joined_rows(share: Share, heads: int, kv_heads: int, head_size: int) -> list[Span]:
    """Return the rows of a weight [all q | all k | all v] on a rank, in that order."""
    q, kv = _rows(share.q, head_size), _rows(share.kv, head_size)
    after_q, after_k = heads * head_size, (heads + kv_heads) * head_size
    return [q, (after_q + kv[0], after_q + kv[1]), (after_k + kv[0], after_k + kv[1])]


def _rows(heads: Span, head_size: int) -> Span:
    return heads[0] * head_size, heads[1] * head_size
