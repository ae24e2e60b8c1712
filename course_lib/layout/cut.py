"""The rule for sharding a dim over ranks, and two more rules, for buffers and for heads.

A dim is split as by `torch.chunk` and DTensor's Shard, a flat buffer by ceiling division with
padding, and heads as evenly as possible. Lessons 02 (dims), 05 (heads) and 09 (buffers).
"""

from __future__ import annotations

from typing import NamedTuple


def cut(total: int, n: int) -> list[int]:
    """Return the length of each rank's piece of a dim: ceil(total/n), until no element is left.

    The last ranks may get less, or nothing: `cut(7, 3) == [3, 3, 1]`, `cut(2, 4) == [1, 1, 0, 0]`.
    """
    _check(total, n)
    piece = -(-total // n)
    return [max(0, min(piece, total - rank * piece)) for rank in range(n)]


def span(total: int, n: int, rank: int) -> tuple[int, int]:
    """Return start and stop of the piece of `rank`; both are `total` for an empty piece."""
    _check(total, n, rank)
    piece = -(-total // n)
    return min(total, rank * piece), min(total, (rank + 1) * piece)


class FlatCut(NamedTuple):
    """A flat buffer sharded over ranks: all shards have length `shard`, with padding at the end."""

    total: int
    shard: int
    pieces: tuple[int, ...]  # real elements of each rank
    padding: tuple[int, ...]  # elements that fill up its shard

    @property
    def padded(self) -> int:
        """The total length of all shards."""
        return self.shard * len(self.pieces)

    def span(self, rank: int) -> tuple[int, int]:
        """Return the range (start, stop) of `rank`'s real elements in the buffer."""
        return span(self.total, len(self.pieces), rank)


def flat(total: int, n: int) -> FlatCut:
    """Split `total` elements into `n` equal shards of ceil(total/n), as one collective needs."""
    pieces = cut(total, n)
    shard = -(-total // n)
    return FlatCut(total, shard, tuple(pieces), tuple(shard - piece for piece in pieces))


def heads(n_heads: int, n: int) -> list[int]:
    """Return the number of attention heads on each rank; the first ranks may get one more.

    Five heads on four ranks are [2, 1, 1, 1], while `cut` would leave a rank idle.
    """
    _check(n_heads, n)
    if n > n_heads:
        raise ValueError(
            f"{n_heads} heads cannot be distributed over {n} ranks, because {n - n_heads} of them "
            f"would have none. Use at most {n_heads} ranks on this axis, or a model with more heads"
        )
    return [n_heads // n + (rank < n_heads % n) for rank in range(n)]


def kv_heads(kv: int, n: int) -> list[tuple[int, int]]:
    """Return the key/value heads (start, stop) of each rank.

    If n is at most kv, they are distributed as by `heads`. If n is a multiple of kv, n / kv
    neighbouring ranks hold each head, and their gradients for it must be summed.
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
        raise ValueError(f"cannot shard over {n} ranks: at least 1 is needed")
    if total < 0:
        raise ValueError(f"cannot shard a length of {total}: it must be 0 or more")
    if rank is not None and not 0 <= rank < n:
        raise ValueError(f"there is no rank {rank} among {n}: ranks are 0 to {n - 1}")
