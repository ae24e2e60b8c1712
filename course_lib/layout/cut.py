"""One rule for sharding a dim over ranks, and two more for what must not be sharded like a dim.

A dim is split as by `torch.chunk` (so DTensor's Shard agrees), a flat buffer by ceiling division
with padding, heads as evenly as they go. Derived in lessons 02 (dims), 05 (heads), 09 (buffers).
"""

from __future__ import annotations

from typing import NamedTuple


def cut(total: int, n: int) -> list[int]:
    """How long each of `n` ranks' piece of a dim is: ceil(total/n) until nothing is left.

    The last ranks may get less, or nothing: `cut(7, 3) == [3, 3, 1]`, `cut(2, 4) == [1, 1, 0, 0]`.
    """
    _check(total, n)
    piece = -(-total // n)
    return [max(0, min(piece, total - rank * piece)) for rank in range(n)]


def span(total: int, n: int, rank: int) -> tuple[int, int]:
    """Where the piece of `rank` starts and stops; an empty piece starts and stops at `total`."""
    _check(total, n, rank)
    piece = -(-total // n)
    return min(total, rank * piece), min(total, (rank + 1) * piece)


class FlatCut(NamedTuple):
    """A flat buffer sharded over ranks: every shard is `shard` long, the last ones with padding."""

    total: int
    shard: int
    pieces: tuple[int, ...]  # real elements of each rank
    padding: tuple[int, ...]  # and what fills its shard up

    @property
    def padded(self) -> int:
        """The length of all shards together."""
        return self.shard * len(self.pieces)

    def span(self, rank: int) -> tuple[int, int]:
        """Start and stop of the real elements of `rank` in the buffer."""
        return span(self.total, len(self.pieces), rank)


def flat(total: int, n: int) -> FlatCut:
    """Cut `total` elements into `n` shards of ceil(total/n): equal, so that one collective does."""
    pieces = cut(total, n)
    shard = -(-total // n)
    return FlatCut(total, shard, tuple(pieces), tuple(shard - piece for piece in pieces))


def heads(n_heads: int, n: int) -> list[int]:
    """How many attention heads each rank computes: differing by at most one, the first get more.

    Not `cut`: five heads on four ranks are [2, 1, 1, 1], where `cut` would leave a rank idle.
    """
    _check(n_heads, n)
    if n > n_heads:
        raise ValueError(
            f"{n_heads} heads cannot be spread over {n} ranks: {n - n_heads} of them would have no "
            f"head. Use at most {n_heads} ranks on this axis, or a model with more heads"
        )
    return [n_heads // n + (rank < n_heads % n) for rank in range(n)]


def kv_heads(kv: int, n: int) -> list[tuple[int, int]]:
    """Which key/value heads (start, stop) each rank holds.

    No more ranks than kv heads: spread like `heads`. A multiple of them: each head is held by
    `n / kv` neighbouring ranks, whose gradients for it must be summed.
    """
    _check(kv, n)
    if kv >= n:
        spans, start = [], 0
        for count in heads(kv, n):
            spans.append((start, start + count))
            start += count
        return spans
    if kv == 0 or n % kv:
        fitting = [str(m) for m in range(1, n + 1) if m <= kv or (kv and m % kv == 0)]
        raise ValueError(
            f"{kv} key/value heads cannot be shared by {n} ranks: {n} is not a multiple of {kv}, "
            f"so some heads would have more copies than others. Use one of these numbers of ranks "
            f"on this axis: {', '.join(fitting) or 'none, without kv heads'}"
        )
    copies = n // kv
    return [(rank // copies, rank // copies + 1) for rank in range(n)]


def _check(total: int, n: int, rank: int | None = None) -> None:
    if n < 1:
        raise ValueError(f"cannot cut over {n} ranks: there has to be at least 1")
    if total < 0:
        raise ValueError(f"cannot cut a length of {total}: it has to be 0 or more")
    if rank is not None and not 0 <= rank < n:
        raise ValueError(f"there is no rank {rank} among {n}: ranks are 0 to {n - 1}")
