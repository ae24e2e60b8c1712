"""The micro-batches of a step (gradient accumulation), and the divisors of their gradients.

A mean loss is divided before its backward pass, by ranks and micro-batches. Sums are divided once,
at the end, by the tokens of all ranks and micro-batches. Lesson 09 uses both.
"""

from __future__ import annotations

import torch

from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group, device_of, labelled


class MicroBatches:
    """The number of a step's micro-batches that have begun, and their tokens on this rank."""

    def __init__(self, each_step: int):
        self.each_step = each_step
        self.begun = 0
        self.pending = False  # a backward pass without its step
        self.tokens: float | None = None

    @property
    def complete(self) -> bool:
        return self.begun == self.each_step

    def check(self, tokens: float | None) -> None:
        """Raise if a micro-batch does not match the step's earlier micro-batches."""
        if self.pending:
            raise RuntimeError(
                "backward was called twice without a step. Call engine.step() after each "
                f"engine.backward(); it updates every {self.each_step} calls and else does nothing"
            )
        if self.begun and (tokens is None) != (self.tokens is None):
            raise ValueError(
                "tokens= was passed for some micro-batches of this step but not for others, and a "
                "sum and a mean cannot be added"
            )

    def begin(self, tokens: float | None, ranks: int) -> float:
        """Count one more micro-batch; return the factor of its loss before the backward pass."""
        self.begun, self.pending = self.begun + 1, True
        if tokens is None:
            return 1.0 / (ranks * self.each_step)
        self.tokens = (self.tokens or 0.0) + float(tokens)
        return 1.0

    def divisor(self, group: Group) -> float:
        """Return the remaining divisor of the summed gradients: the tokens of all ranks."""
        if self.tokens is None:
            return 1.0
        tokens = torch.tensor(self.tokens, dtype=torch.float64, device=device_of(group))
        with labelled("scalars"):
            return all_reduce(tokens, group, donated=True).item() or 1.0

    def forget(self) -> None:
        """Start a new step."""
        self.begun, self.pending, self.tokens = 0, False, None
