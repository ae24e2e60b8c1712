"""Which positions of a sequence each rank has: in one stretch, or as a zigzag that balances work.

Under a causal mask a token at position i looks at i + 1 keys, so the end of a sequence is more work
than its beginning. A zigzag gives each rank a piece of both. Appendix E4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def stretches(length: int, n: int) -> list[Tensor]:
    """n stretches one after the other, the first ones a token longer where it does not divide."""
    _check(length, n, n)
    return list(torch.arange(length).tensor_split(n))


def zigzag(length: int, n: int) -> list[Tensor]:
    """2n stretches; rank r has number r and number 2n - 1 - r."""
    _check(length, n, 2 * n)
    pieces = torch.arange(length).tensor_split(2 * n)
    return [torch.cat((pieces[r], pieces[2 * n - 1 - r])) for r in range(n)]


def work(places: Sequence[Tensor]) -> list[int]:
    """How many pairs of a query and a key that it may see each rank computes."""
    return [int((own + 1).sum()) for own in places]


def check_places(places: Sequence[Tensor], n: int) -> None:
    """Refuse positions that are not each on exactly one rank, or a rank without one."""
    every = torch.cat(list(places)).sort().values.tolist() if len(places) else []
    if len(places) != n or not all(map(len, places)) or every != list(range(len(every))):
        raise ValueError(
            f"places= has to share out the positions 0, 1, 2, … over {n} ranks, each to one rank "
            f"and one or more to each; these are {[len(own) for own in places]} of them, "
            "as stretches(length, n) or zigzag(length, n) makes them"
        )


def _check(length: int, n: int, pieces: int) -> None:
    if n < 1 or length < pieces:
        raise ValueError(
            f"{length} tokens cannot be cut into {pieces} pieces for {n} ranks, each with a token "
            "or more; take fewer ranks or a longer sequence"
        )
