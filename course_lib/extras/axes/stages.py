"""A pipeline stage: consecutive blocks of a GPT, and the embedding or the head at the ends.

Parameters keep their names from the full model. A tied embedding table is needed at both ends, so
the first and the last stage each hold it, and its gradients are summed over both. Appendix E4.
"""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.extras.axes.schedule import check
from course_lib.gpt import GPT


def blocks_of_stages(layers: int, stages: int) -> list[range]:
    """Return the blocks of each stage, of which the first stages may have one more."""
    check(stages, 1)
    if stages > layers:
        raise ValueError(
            f"{stages} stages are too many for {layers} blocks: a stage without a block would only "
            f"pass messages on. Take at most {layers} ranks for the pipeline, or a deeper model"
        )
    each, more = divmod(layers, stages)
    starts = [i * each + min(i, more) for i in range(stages + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


class Stage(nn.Module):
    """The part of the model on one rank of a pipeline. The first stage takes ids, and the last
    computes a loss; stages exchange hidden states (b, s, h)."""

    def __init__(self, model: GPT, own: range, *, first: bool, last: bool):
        super().__init__()
        self.config, self.first, self.last = model.config, first, last
        self.tied = model.config.tied and not (first and last)
        if first:
            self.tokens, self.positions, self.dropout = model.tokens, model.positions, model.dropout
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in own})
        if last:
            self.norm, self.head = model.norm, model.head
        if self.tied and last:  # separate from the first stage's tensor
            self.head.weight = nn.Parameter(model.head.weight.detach().clone())

    embed = GPT.embed

    def forward(self, x: Tensor) -> Tensor:
        """(b, s) ids or (b, s, h) states -> hidden states, normalized on the last stage."""
        if self.first:
            x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return self.norm(x) if self.last else x

    def loss_sum(self, states: Tensor, targets: Tensor) -> Tensor:
        """Sum the losses of all targets (b, s), given the states of the last stage."""
        logits = self.head(states).flatten(0, 1)  # (b·s, v)
        return F.cross_entropy(logits, targets.flatten(), reduction="sum")

    def table(self) -> nn.Parameter | None:
        """Return this stage's copy of a tied table, or None if this stage has none."""
        if not self.tied:
            return None
        return self.tokens.weight if self.first else self.head.weight if self.last else None


def cut_into_stages(model: GPT, stages: int, stage: int) -> Stage:
    """Take one stage's modules out of a full model. Discard the model afterwards."""
    check(stages, 1, stage)
    own = blocks_of_stages(model.config.layers, stages)[stage]
    return Stage(model, own, first=stage == 0, last=stage == stages - 1)
