"""Prompts of unequal lengths as one batch, padded on the left so that all of them end together.

The next token then follows the last place in every row. A cache that knows the padding ensures that
no token attends to it, and that positions start at each row's first token. Lesson 08.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def as_lists(prompts: Tensor | Sequence[Tensor | Sequence[int]]) -> list:
    """Return the prompts' ids as plain lists."""
    return [row.tolist() if isinstance(row, Tensor) else list(row) for row in prompts]


def left_padded(
    prompts: Tensor | Sequence[Tensor | Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Prompts -> (b, s) ids, and the number of padded places on the left of each row, (b,).

    The padding is None for a tensor, which is already a batch, and for prompts of equal length.
    """
    if isinstance(prompts, Tensor):
        return prompts, None
    rows = [torch.as_tensor(row, device=device) for row in prompts]
    for i, row in enumerate(rows):
        whole = not row.is_floating_point() and row.dtype != torch.bool
        if row.dim() != 1 or not row.numel() or not whole:
            kind = "without a token" if not row.numel() else f"{row.dtype} {tuple(row.shape)}"
            raise ValueError(
                f"prompt {i} of {len(rows)} is {kind}, but each must be a list of token ids"
            )
    longest = max((len(row) for row in rows), default=1)
    ids = torch.zeros((len(rows), longest), dtype=torch.long, device=device)
    for place, row in zip(ids, rows, strict=True):
        place[longest - len(row) :] = row
    padding = torch.tensor([longest - len(row) for row in rows], device=device)
    return ids, padding if padding.any() else None


def without_padding(ids: Tensor, padding: Tensor | None) -> list[Tensor]:
    """(b, s) ids -> each row from its first token on."""
    first = [0] * len(ids) if padding is None else padding.tolist()
    return [row[start:] for row, start in zip(ids, first, strict=True)]
