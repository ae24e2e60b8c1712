"""A pipeline stage: some consecutive blocks of a GPT, with the embedding or the head at the ends.

Parameters keep the names that they have in the whole model. A tied table is needed at both ends:
first and last stage each hold it, and its gradient is a sum over both. Appendix E4.
"""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.extras.axes.schedule import check
from course_lib.gpt import GPT


def blocks_of_stages(layers: int, stages: int) -> list[range]:
    """Which blocks each stage has: equally many, or the first stages one more."""
    check(stages, 1)
    if stages > layers:
        raise ValueError(
            f"{stages} stages and {layers} blocks: a stage without a block would only pass "
            f"messages on. Take {layers} ranks for the pipeline or fewer, or a deeper model"
        )
    each, more = divmod(layers, stages)
    starts = [i * each + min(i, more) for i in range(stages + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


class Stage(nn.Module):
    """What one rank of a pipeline computes. The first takes ids, the last gives a loss; between
    them go hidden states (b, s, h)."""

    def __init__(self, model: GPT, own: range, *, first: bool, last: bool):
        super().__init__()
        self.config, self.first, self.last = model.config, first, last
        self.tied = model.config.tied and not (first and last)
        if first:
            self.tokens, self.positions, self.dropout = model.tokens, model.positions, model.dropout
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in own})
        if last:
            self.norm, self.head = model.norm, model.head
        if self.tied and last:  # no longer the same tensor as the first stage's
            self.head.weight = nn.Parameter(model.head.weight.detach().clone())

    embed = GPT.embed

    def forward(self, x: Tensor) -> Tensor:
        """Ids (b, s) or hidden states (b, s, h) to hidden states, after the last block normed."""
        if self.first:
            x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return self.norm(x) if self.last else x

    def loss_sum(self, states: Tensor, targets: Tensor) -> Tensor:
        """The sum of the losses of all targets (b, s), of the last stage's states."""
        logits = self.head(states).flatten(0, 1)  # (b·s, v)
        return F.cross_entropy(logits, targets.flatten(), reduction="sum")

    def table(self) -> nn.Parameter | None:
        """The end's copy of a tied table; None on a stage that shares nothing."""
        if not self.tied:
            return None
        return self.tokens.weight if self.first else self.head.weight if self.last else None


def cut_into_stages(model: GPT, stages: int, stage: int) -> Stage:
    """Take one stage out of a whole model, which gives up its modules; drop the model then."""
    check(stages, 1, stage)
    own = blocks_of_stages(model.config.layers, stages)[stage]
    return Stage(model, own, first=stage == 0, last=stage == stages - 1)
