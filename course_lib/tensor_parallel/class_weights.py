"""A weight for each word in the loss: rare words count more, as in torch's cross_entropy(weight=).

All ranks hold all weights, so nothing is sent: each takes those of its own words, and those of the
tokens' targets, whoever has their logits. Lesson 07.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class ClassWeights(NamedTuple):
    """What the loss of some tokens needs of the words' weights."""

    token: Tensor  # (t,): that of each token's target, 0 where ignored
    own: Tensor  # (real,): those of this rank's words
    total: Tensor  # (): the sum over all words


def class_weights(
    weight: Tensor | None,
    targets: Tensor,
    vocabulary: int,
    ignore_index: int,
    mine: tuple[int, int],
    dtype: torch.dtype,
) -> ClassWeights | None:
    """The weights (vocabulary,) as the loss takes them; `mine` is the span of this rank's words."""
    if weight is None:
        return None
    wide = weight.to(dtype)
    ignored = targets == ignore_index
    token = torch.where(ignored, 0.0, wide[torch.where(ignored, 0, targets)])
    return ClassWeights(token, wide[slice(*mine)], wide.sum())


def check_class_weights(weight: Tensor | None, vocabulary: int, name: str) -> None:
    """Refuse weights that are not one for each word, the same on all ranks, and constant."""
    if weight is None:
        return
    if tuple(weight.shape) != (vocabulary,):
        raise ValueError(
            f"{name} has to hold a weight for each of {vocabulary} words, and has the shape "
            f"{tuple(weight.shape)}. Every rank passes all of them: neither its own part nor "
            "weights for the padding"
        )
    if weight.requires_grad:
        raise ValueError(f"{name} gets no gradient, in torch neither; pass {name}.detach()")


def pulls(weights: ClassWeights | None, smoothing: float, vocabulary: int):
    """How much of a token's loss is minus its target's logit, and how much the log of its sum of
    exponentials; what is left, where labels are smoothed, is minus the logits of all words."""
    if weights is None:
        return 1 - smoothing, 1.0
    target = (1 - smoothing) * weights.token  # (t,)
    return target, target + smoothing / vocabulary * weights.total


def summed(x: Tensor, weights: ClassWeights | None) -> Tensor:
    """(t, real) to (t,): the sum over this rank's words, by their weights."""
    return x.sum(-1) if weights is None else x @ weights.own
