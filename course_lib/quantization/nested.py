"""Double quantization: the scales of 4-bit blocks are quantized too, to int8 in blocks of 256.

Scales are positive, so their mean is taken off first, and codes have both signs. Per weight the
scales then take 8/64 + 32/(64·256) bits in place of 32/64. Appendix E2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

BLOCK = 256


@dataclass(frozen=True, eq=False)
class Nested:
    """Scales (outputs, blocks) as int8 codes, a float32 scale for each 256, and one mean."""

    codes: Tensor  # (outputs, blocks), int8
    scales: Tensor  # (⌈outputs·blocks/256⌉,), float32
    mean: Tensor  # (), float32

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.codes.shape)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.mean.nbytes

    def expand(self) -> Tensor:
        """The scales in float32 again, none of them below 0."""
        flat = self.codes.flatten()
        each = self.scales.repeat_interleave(BLOCK)[: flat.numel()]
        return (flat * each + self.mean).clamp(min=0).view(self.codes.shape)

    def to(self, device: torch.device | str) -> Nested:
        parts = {name: getattr(self, name).to(device) for name in ("codes", "scales", "mean")}
        return replace(self, **parts)


def nest(scales: Tensor) -> Nested:
    """(outputs, blocks) float32 scales to int8; the last group of 256 may be shorter."""
    mean = scales.mean()
    flat = (scales - mean).flatten()
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    most = padded.abs().amax(1) / 127
    codes = (padded / most.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round()
    codes = codes.to(torch.int8).flatten()[: flat.numel()].view(scales.shape)
    return Nested(codes, most, mean)
