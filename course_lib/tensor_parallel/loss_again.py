"""The gradient of the cut loss in steps that autograd can differentiate once more.

Softmax minus one-hot, with the messages that the softmax's own derivative owes: every logit pulls
at the softmax of all ranks. Only a backward with create_graph=True comes here. Lesson 07.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group
from course_lib.tensor_parallel.class_weights import ClassWeights, pulls
from course_lib.tensor_parallel.conjugates import copy, reduce


def gradient_again(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor,
    group: Group,
    ignore_index: int,
    start: int,
    real: int,
    vocabulary: int,
    smoothing: float,
    weights: ClassWeights | None = None,
) -> Tensor:
    """The same gradient in steps that autograd can differentiate, for two more messages: a softmax
    reads all ranks' logits, so its own gradient goes back to all of them."""
    ignored = targets == ignore_index
    words = logits[:, :real].to(wide(logits)).masked_fill(ignored[:, None], 0.0)  # (t, real)
    most = words.new_full((len(words),), -math.inf)
    most = all_reduce(words.detach().amax(-1) if real else most, group, "max")
    above = (words - finite(most)[:, None]).exp()
    softmax = above / copy(reduce(above.sum(-1), group), group)[:, None]
    # The loss is the same on all ranks, and so is what comes back to it; here it meets a part.
    weight = copy(torch.where(ignored, 0.0, weight.to(words.dtype)), group)  # (t,)
    of_target, of_sum = pulls(weights, smoothing, vocabulary)
    out = softmax * (of_sum * weight)[:, None]
    if smoothing:
        each = 1.0 if weights is None else weights.own
        out = out - smoothing / vocabulary * weight[:, None] * each
    if real:
        local = targets - start
        right = torch.where((local >= 0) & (local < real), -of_target * weight, 0.0)
        out = out.scatter_add(-1, local.clamp(0, real - 1)[:, None], right[:, None])
    return F.pad(out, (0, logits.shape[-1] - real)).to(logits.dtype)


def finite(most: Tensor) -> Tensor:
    """The largest of each row as it can be taken off: 0 where the row is all -inf."""
    return torch.where(most == -math.inf, 0.0, most)


def wide(logits: Tensor) -> torch.dtype:
    """Sums over a vocabulary are taken in float32 at least."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32
