"""The loss of a batch as a sum over its tokens, for a dense or sharded model, fused or not.

It is a sum because the token counts of other ranks and micro-batches are not yet known. A mean of
means would give a token more weight if its batch has few tokens. Lesson 08 derives it.
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
    """Return the sum of the losses of all targets (b, s) except -100, the same on all tp ranks.

    `fused` computes head and loss together for a few tokens at a time, without holding the logits.
    For an empty batch the loss is 0, with gradients of 0 and all messages of the tp group.
    """
    ids, targets = _with_a_row(ids, targets)
    head = model.head
    if not isinstance(head, VocabularyParallelHead):
        if fused:
            raise ValueError(
                "fused=True takes a model that is sharded over tp (one rank is enough), but this "
                "head is not sharded; apply parallelize(model, mesh), or leave fused out"
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

    # Through the modules, so that a weight gathered for its module's call is present.
    return model(ids, head=lambda states: head(states, loss))


def _with_a_row(ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the batch, or if it has no token, a row of ignored targets. Thus no layer or kernel
    gets an empty batch, and this rank sends all messages that other ranks expect."""
    if ids.numel():
        return ids, targets
    shape = (1, max(1, ids.shape[-1]))
    return ids.new_zeros(shape), targets.new_full(shape, IGNORED)


def valid(targets: Tensor) -> int:
    """Count the targets that are not ignored."""
    return numbers((targets != IGNORED).sum(), targets.numel())
