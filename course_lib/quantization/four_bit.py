"""A weight in four bits: codes of a code book, two a byte, and a scale for each block of a row.

What rounding to nearest, GPTQ and AWQ choose is kept in this one form, so their bytes are equal.
Appendix E2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_lib.quantization.borders import cut_blocks
from course_lib.quantization.codebooks import levels, nearest
from course_lib.quantization.nested import Nested, nest
from course_lib.quantization.refusals import check_block, check_weight

BLOCK = 64


def pack(codes: Tensor) -> Tensor:
    """(…, 2k) codes from 0 to 15 to (…, k) bytes: the first in the high half, as bitsandbytes."""
    return (codes[..., ::2] << 4) | codes[..., 1::2]


def unpack(packed: Tensor) -> Tensor:
    """(…, k) bytes to (…, 2k) codes."""
    return torch.stack((packed >> 4, packed & 15), dim=-1).flatten(-2)


@dataclass(frozen=True, eq=False)
class FourBit:
    """A weight [outputs, inputs]: packed codes, scales (maybe nested), the code's name."""

    packed: Tensor  # (outputs, inputs/2), uint8
    scales: Tensor | Nested  # (outputs, inputs/block)
    code: str
    block: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], 2 * self.packed.shape[1]

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scales.nbytes

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """(outputs, inputs) levels times scales."""
        scales = self.scales.expand() if isinstance(self.scales, Nested) else self.scales
        values = levels(self.code).to(self.packed.device, dtype)[unpack(self.packed).long()]
        return (values.unflatten(1, (-1, self.block)) * scales.to(dtype)[..., None]).flatten(1)

    def nest(self) -> FourBit:
        """The same codes with scales in 8 bits."""
        return self if isinstance(self.scales, Nested) else replace(self, scales=nest(self.scales))

    def cut_outputs(self, start: int, stop: int) -> FourBit:
        """The part of some outputs: its scales lie in the same rows."""
        scales = self._whole_scales()[start:stop]
        return replace(self, packed=self.packed[start:stop], scales=scales)

    def cut_inputs(self, start: int, stop: int) -> FourBit:
        """The part of some inputs, between borders of blocks, with its blocks' scales."""
        first, last = cut_blocks(start, stop, self.block)
        scales = self._whole_scales()[:, first:last]
        return replace(self, packed=self.packed[:, start // 2 : stop // 2], scales=scales)

    def _whole_scales(self) -> Tensor:
        if isinstance(self.scales, Nested):
            raise ValueError(
                "the scales are nested: 256 of them share a scale of their own and all share a "
                "mean, across this cut. Cut the weight first, and call nest() on each part"
            )
        return self.scales

    def to(self, device: torch.device | str) -> FourBit:
        return replace(self, packed=self.packed.to(device), scales=self.scales.to(device))


def quantize_4bit(
    weight: Tensor, code: str = "nf4", block: int = BLOCK, *, nested: bool = False
) -> FourBit:
    """(outputs, inputs) floats to the nearest levels of each block."""
    weight = check_weight(weight)
    check_block(weight.shape[1], block)
    parts = weight.unflatten(1, (-1, block))  # (outputs, blocks, block)
    scales = parts.abs().amax(2).float()
    kept = FourBit(pack(nearest(over(parts, scales), code).flatten(1)), scales, code, block)
    return kept.nest() if nested else kept


def over(parts: Tensor, scales: Tensor) -> Tensor:
    """(…, blocks, block) weights over their scales; a block of zeros stays zeros."""
    tiny = torch.finfo(torch.float32).tiny
    return parts / scales.to(parts.dtype).clamp(min=tiny)[..., None]
