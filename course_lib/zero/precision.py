"""Half precision: a model in 16 bits, an optimizer with a 32-bit copy, and fp16's loss scale.

An update far smaller than its weight is lost in 16 bits, but the copy keeps it. fp16 also loses
small gradients unless the loss is scaled up. Lesson 09 derives the copy, lesson 10 the scale.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class LossScale:
    """fp16's factor of the loss, which doubles after `window` good steps and is halved by the last
    of `patience` (`hysteresis`) overflows. The defaults are DeepSpeed's. As in DeepSpeed, the first
    good step after an overflow does not count, and the patience is restored when the scale doubles,
    or, with `consecutive`, after any good step. With `stops`, an overflow at the least scale ends
    the training; otherwise the step is skipped again."""

    value: float = 2.0**16
    window: int = 1000
    patience: int = 2
    least: float = 1.0
    good: int = -1  # consecutive good steps, without the first
    left: int = field(default=0)  # remaining patience; 0 means all
    consecutive: bool = False
    stops: bool = False

    def __post_init__(self) -> None:
        self.left = self.left or self.patience
        if not (self.value >= self.least > 0 and self.window >= 1 and self.patience >= 1):
            raise ValueError(
                f"{self}: value must be at least `least`, which is above 0, the others 1 or more"
            )

    def after(self, overflow: bool) -> None:
        """Record a step; `overflow` is True if some gradient on some rank was inf or NaN."""
        if not overflow:
            self.good += 1
            if self.consecutive:
                self.left = self.patience
            if self.good > 0 and self.good % self.window == 0:
                self.value *= 2
                self.left = self.patience
            return
        if self.stops and self.left == 1 and self.value == self.least:
            raise FloatingPointError(
                f"an overflow at the least loss scale, {self.least:g}: no scale is small enough. "
                "Look for a NaN in the loss; a model trained in bfloat16 may not fit float16 at all"
            )
        self.good = -1
        self.left -= 1
        if self.left <= 0:
            self.value, self.left = max(self.least, self.value / 2), 1


@dataclass(frozen=True)
class Precision:
    """The dtype of the model, and the choice of a float32 copy for the optimizer."""

    dtype: torch.dtype | None  # None keeps the model's dtype
    master: bool
    scale: LossScale | None = None

    @classmethod
    def named(cls, name: str | torch.dtype | Precision) -> Precision:
        if isinstance(name, Precision):  # each engine finds its own scale
            return replace(name, scale=copy.copy(name.scale))
        if name == "as is":
            return cls(None, False)
        if isinstance(name, torch.dtype):
            name = str(name).removeprefix("torch.")
        if name not in DTYPES:
            raise ValueError(
                f"precision={name!r} must be one of {', '.join(DTYPES)}, or 'as is' to keep it"
            )
        dtype = DTYPES[name]
        half = dtype != torch.float32
        return cls(dtype, half, LossScale() if dtype == torch.float16 else None)
