"""The options that all ways share: ZeRO's stage, offload, accumulation, clipping, precision.

Every way reads the same setting and translates it into its own options. Lesson 13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

OFFLOADS = {
    None: "nothing",
    "optimizer": "the optimizer's part on the host",
    "all": "the optimizer's part and the parameters on the host",
    "nvme": "the optimizer's part and the parameters in files",
}
PRECISIONS = ("float32", "bfloat16", "float16")


class NotThere(RuntimeError):
    """The error for a setting that a way does not support, or not on this machine."""


@dataclass(frozen=True)
class WaySetting:
    """A run's options. `folder` holds nvme's files; `compiled` selects DeepSpeed's own Adam."""

    stage: int = 0
    offload: str | None = None
    accumulate: int = 1
    clip: float | None = None
    precision: str = "float32"
    folder: str | None = None
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip={self.clip!r} must be a number above 0; None does not clip")
        if self.stage not in range(4):
            raise ValueError(f"stage={self.stage!r} is not one of 0, 1, 2, 3")
        if self.offload not in OFFLOADS:
            names = ", ".join(map(repr, OFFLOADS))
            raise ValueError(f"offload={self.offload!r} is not one of {names}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if self.accumulate < 1:
            raise ValueError(f"accumulate={self.accumulate}, but a step needs a micro-batch")
        if self.offload is not None and self.stage == 0:
            raise ValueError("offload needs stage 1 to 3, since no rank has a shard at stage 0")
        if self.offload in ("all", "nvme") and self.stage != 3:
            raise ValueError(
                f"offload={self.offload!r} moves parameters; stage {self.stage} does not shard them"
            )
        if self.offload == "nvme" and not self.folder:
            raise ValueError("offload='nvme' needs a folder for its files")

    def __str__(self) -> str:
        words = [f"stage {self.stage}"]
        if self.offload is not None:
            words.append(f"offload {self.offload}")
        if self.accumulate > 1:
            words.append(f"accumulate {self.accumulate}")
        if self.clip is not None:
            words.append(f"clip {self.clip:g}")
        if self.precision != "float32":
            words.append(self.precision)
        return ", ".join(words)
