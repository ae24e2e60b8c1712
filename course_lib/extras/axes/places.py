"""The positions of a sequence on each rank: one stretch, or a zigzag that balances the work.

Under a causal mask a token at position i attends to i + 1 keys, so the end of a sequence needs more
work than its beginning. In a zigzag each rank has a piece of each. Appendix E4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def stretches(length: int, n: int) -> list[Tensor]:
    """Split positions into n consecutive stretches, the first ones longer by one if needed."""
    _check(length, n, n)
    return list(torch.arange(length).tensor_split(n))


def zigzag(length: int, n: int) -> list[Tensor]:
    """Split positions into 2n stretches; rank r has stretches r and 2n - 1 - r."""
    _check(length, n, 2 * n)
    pieces = torch.arange(length).tensor_split(2 * n)
    return [torch.cat((pieces[r], pieces[2 * n - 1 - r])) for r in range(n)]


def work(places: Sequence[Tensor]) -> list[int]:
    """Count each rank's pairs of a query and a key that the query may attend to."""
    return [int((own + 1).sum()) for own in places]


def check_places(places: Sequence[Tensor], n: int) -> None:
    """Raise unless each position is on exactly one rank and each rank has a position."""
    every = torch.cat(list(places)).sort().values.tolist() if len(places) else []
    if len(places) != n or not all(map(len, places)) or every != list(range(len(every))):
        raise ValueError(
            f"places= must assign the positions 0, 1, 2, … to {n} ranks, each to one rank and at "
            f"least one to each, but these have {[len(own) for own in places]} positions; "
            "use stretches(length, n) or zigzag(length, n)"
        )


def _check(length: int, n: int, pieces: int) -> None:
    if n < 1 or length < pieces:
        raise ValueError(
            f"{length} tokens cannot be split into {pieces} pieces for {n} ranks with a token "
            "or more each; take fewer ranks or a longer sequence"
        )
