"""The loss of a batch as a sum over its tokens, whatever the model is: dense, cut, fused.

A sum and not a mean, because the tokens of other ranks and other micro-batches are not known yet; a
mean of means weighs a token by how few its neighbours are. Lesson 08 derives it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.gpt import GPT
from course_lib.meta import numbers
from course_lib.tensor_parallel.cross_entropy import IGNORED, cross_entropy
from course_lib.tensor_parallel.embedding import VocabularyParallelHead
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy


def loss_sum(model: GPT, ids: Tensor, targets: Tensor, *, fused: bool = False) -> Tensor:
    """The sum of the losses of all targets (b, s) that are not -100; the same on all tp ranks.

    `fused` computes head and loss in one, a few tokens at a time, and never holds the logits. Of no
    row at all the loss is 0, with gradients of 0 and with every message of the tp group.
    """
    ids, targets = _with_a_row(ids, targets)
    head = model.head
    if not isinstance(head, VocabularyParallelHead):
        if fused:
            raise ValueError(
                "fused=True takes a model that is cut over tp (one rank will do), and this one's "
                "head is whole; lay parallelize(model, mesh) over it, or leave fused out"
            )
        logits = model(ids).flatten(0, 1)  # (b·s, v)
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    table = model.tokens
    how = {"vocabulary": table.vocabulary, "padded": table.padded, "reduction": "sum"}
    if not fused:
        return cross_entropy(model(ids), targets, head.group, **how)

    def loss(states: Tensor, weight: Tensor) -> Tensor:  # (b, s, h), or (b, s/tp, h), and (v/tp, h)
        states = head.way.all_tokens(states)  # (b, s, h)
        return head_cross_entropy(states, weight, targets, head.group, **how)

    # Through the modules, so that a weight which is gathered for its module's call is there.
    return model(ids, head=lambda states: head(states, loss))


def _with_a_row(ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The batch, or, where it holds no token, a row of which no target counts: so no layer, and no
    kernel below it, meets an empty batch, and this rank sends what the others wait for."""
    if ids.numel():
        return ids, targets
    shape = (1, max(1, ids.shape[-1]))
    return ids.new_zeros(shape), targets.new_full(shape, IGNORED)


def valid(targets: Tensor) -> int:
    """How many targets count."""
    return numbers((targets != IGNORED).sum(), targets.numel())
