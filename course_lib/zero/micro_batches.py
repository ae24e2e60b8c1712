"""The micro-batches of a step (gradient accumulation), and what their gradients are divided by.

A mean's loss is divided before its backward, by ranks and micro-batches. Sums are divided when all
are there, once, by the tokens of all ranks and micro-batches. Lesson 09 meets both.
"""

from __future__ import annotations

import torch

from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group, device_of, labelled


class MicroBatches:
    """How many of a step's micro-batches have begun, and their tokens on this rank."""

    def __init__(self, each_step: int):
        self.each_step = each_step
        self.begun = 0
        self.pending = False  # a backward without its step
        self.tokens: float | None = None

    @property
    def complete(self) -> bool:
        return self.begun == self.each_step

    def check(self, tokens: float | None) -> None:
        """Refuse a micro-batch that does not go with those before it."""
        if self.pending:
            raise RuntimeError(
                "backward twice without a step: call engine.step() after each engine.backward(); "
                f"it updates after every {self.each_step} of them and else does nothing"
            )
        if self.begun and (tokens is None) != (self.tokens is None):
            raise ValueError(
                "tokens= was given for some micro-batches of this step and not for others; a sum "
                "and a mean do not add up"
            )

    def begin(self, tokens: float | None, ranks: int) -> float:
        """Count one more; return what its loss is multiplied with before the backward."""
        self.begun, self.pending = self.begun + 1, True
        if tokens is None:
            return 1.0 / (ranks * self.each_step)
        self.tokens = (self.tokens or 0.0) + float(tokens)
        return 1.0

    def divisor(self, group: Group) -> float:
        """What the summed gradients have still to be divided by: the tokens of all ranks."""
        if self.tokens is None:
            return 1.0
        tokens = torch.tensor(self.tokens, dtype=torch.float64, device=device_of(group))
        with labelled("scalars"):
            return all_reduce(tokens, group, donated=True).item() or 1.0

    def forget(self) -> None:
        """The next one is a step's first."""
        self.begun, self.pending, self.tokens = 0, False, None
