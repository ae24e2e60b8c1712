"""Where the heads lie in a weight, and which of them a rank holds.

Our `qkv` is one weight, rows [all q | all k | all v]. A head is a block of `head_size` rows of each
part, and a rank's share is a list of spans of rows. Lesson 05 derives the shares.
"""

from __future__ import annotations

from typing import NamedTuple

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
    copies, by_rank = n // kv_heads, []
    for rank, (a, b) in enumerate(spans):
        counts, place = spread(each, copies), rank % copies
        start = a * each + sum(counts[:place])
        holders = tuple(range(rank - place, rank - place + copies))
        by_rank.append(Share((start, start + counts[place]), (a, b), holders))
    return by_rank


def joined_rows(share: Share, heads: int, kv_heads: int, head_size: int) -> list[Span]:
    """The rows of one weight [all q | all k | all v] that a rank takes, in that order."""
    q, kv = _rows(share.q, head_size), _rows(share.kv, head_size)
    after_q, after_k = heads * head_size, (heads + kv_heads) * head_size
    return [q, (after_q + kv[0], after_q + kv[1]), (after_k + kv[0], after_k + kv[1])]


def _rows(heads: Span, head_size: int) -> Span:
    return heads[0] * head_size, heads[1] * head_size
