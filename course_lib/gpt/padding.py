"""Prompts of unequal lengths as one batch: padding on the left, so that all of them end together.

The next word is then the last place's in every row. A cache that knows the padding sees to it that
no token looks at it, and that positions count from each row's first token. Lesson 08.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def as_lists(prompts: Tensor | Sequence[Tensor | Sequence[int]]) -> list:
    """The ids as plain lists."""
    return [row.tolist() if isinstance(row, Tensor) else list(row) for row in prompts]


def left_padded(
    prompts: Tensor | Sequence[Tensor | Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Prompts → (b, s) ids, and (b,) how many places on the left of each row are padding.

    A tensor is such a batch already, and has none; so has a list whose prompts are equally long.
    """
    if isinstance(prompts, Tensor):
        return prompts, None
    rows = [torch.as_tensor(row, device=device) for row in prompts]
    for i, row in enumerate(rows):
        whole = not row.is_floating_point() and row.dtype != torch.bool
        if row.dim() != 1 or not row.numel() or not whole:
            kind = "without a token" if not row.numel() else f"{row.dtype} {tuple(row.shape)}"
            raise ValueError(
                f"prompt {i} of {len(rows)} is {kind}: each is a list of token ids, one or more"
            )
    longest = max((len(row) for row in rows), default=1)
    ids = torch.zeros((len(rows), longest), dtype=torch.long, device=device)
    for place, row in zip(ids, rows, strict=True):
        place[longest - len(row) :] = row
    padding = torch.tensor([longest - len(row) for row in rows], device=device)
    return ids, padding if padding.any() else None


def without_padding(ids: Tensor, padding: Tensor | None) -> list[Tensor]:
    """(b, s) ids → each row from its first token on."""
    first = [0] * len(ids) if padding is None else padding.tolist()
    return [row[start:] for row, start in zip(ids, first, strict=True)]
