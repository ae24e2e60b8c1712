"""A weight in four bits: codes of a code book, two per byte, and a scale for each block of a row.

Rounding to nearest, GPTQ and AWQ all use this form, so their bytes are equal. With nesting (double
quantization) the scales are int8 too, in blocks of 256: they take 8/64 + 32/(64·256) bits per
weight, not 32/64. Appendix E2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_lib.extras.quantization.codebooks import levels, nearest
from course_lib.extras.quantization.refusals import check_block, check_weight, cut_blocks

BLOCK = 64
SCALES = 256  # that share a second scale, if scales are nested


def pack(codes: Tensor) -> Tensor:
    """(…, 2k) codes from 0 to 15 -> (…, k) bytes, the first in the high half as in bitsandbytes."""
    return (codes[..., ::2] << 4) | codes[..., 1::2]


def unpack(packed: Tensor) -> Tensor:
    """(…, k) bytes -> (…, 2k) codes."""
    return torch.stack((packed >> 4, packed & 15), dim=-1).flatten(-2)


@dataclass(frozen=True, eq=False)
class Nested:
    """Scales (outputs, blocks) as int8 codes, with a float32 scale for each 256, and one mean."""

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
        """Return the scales in float32 again, all 0 or more."""
        flat = self.codes.flatten()
        each = self.scales.repeat_interleave(SCALES)[: flat.numel()]
        return (flat * each + self.mean).clamp(min=0).view(self.codes.shape)

    def to(self, device: torch.device | str) -> Nested:
        parts = {name: getattr(self, name).to(device) for name in ("codes", "scales", "mean")}
        return replace(self, **parts)


def nest(scales: Tensor) -> Nested:
    """(outputs, blocks) float32 scales -> int8 codes; the last group of 256 may be shorter."""
    mean = scales.mean()
    flat = (scales - mean).flatten()
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % SCALES)).view(-1, SCALES)
    most = padded.abs().amax(1) / 127
    codes = (padded / most.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round()
    codes = codes.to(torch.int8).flatten()[: flat.numel()].view(scales.shape)
    return Nested(codes, most, mean)


@dataclass(frozen=True, eq=False)
class FourBit:
    """A weight [outputs, inputs] as packed codes, scales (possibly nested), and the code's name."""

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
        """Return levels times scales, (outputs, inputs)."""
        scales = self.scales.expand() if isinstance(self.scales, Nested) else self.scales
        values = levels(self.code).to(self.packed.device, dtype)[unpack(self.packed).long()]
        return (values.unflatten(1, (-1, self.block)) * scales.to(dtype)[..., None]).flatten(1)

    def nest(self) -> FourBit:
        """Return the same codes with scales in 8 bits."""
        return self if isinstance(self.scales, Nested) else replace(self, scales=nest(self.scales))

    def cut_outputs(self, start: int, stop: int) -> FourBit:
        """Return the part for some outputs, whose scales are in the same rows."""
        scales = self._whole_scales()[start:stop]
        return replace(self, packed=self.packed[start:stop], scales=scales)

    def cut_inputs(self, start: int, stop: int) -> FourBit:
        """Return the part for some inputs, which must be full blocks, with its blocks' scales."""
        first, last = cut_blocks(start, stop, self.block)
        scales = self._whole_scales()[:, first:last]
        return replace(self, packed=self.packed[:, start // 2 : stop // 2], scales=scales)

    def _whole_scales(self) -> Tensor:
        if isinstance(self.scales, Nested):
            raise ValueError(
                "the scales are nested: 256 of them share a second scale and all share a mean, "
                "across this split. Split the weight first, and call nest() on each part"
            )
        return self.scales

    def to(self, device: torch.device | str) -> FourBit:
        return replace(self, packed=self.packed.to(device), scales=self.scales.to(device))


def quantize_4bit(
    weight: Tensor, code: str = "nf4", block: int = BLOCK, *, nested: bool = False
) -> FourBit:
    """(outputs, inputs) floats -> the nearest levels of each block."""
    weight = check_weight(weight)
    check_block(weight.shape[1], block)
    parts = weight.unflatten(1, (-1, block))  # (outputs, blocks, block)
    scales = parts.abs().amax(2).float()
    kept = FourBit(pack(nearest(over(parts, scales), code).flatten(1)), scales, code, block)
    return kept.nest() if nested else kept


def over(parts: Tensor, scales: Tensor) -> Tensor:
    """(…, blocks, block) weights -> weights divided by scales; a block of zeros stays zero."""
    tiny = torch.finfo(torch.float32).tiny
    return parts / scales.to(parts.dtype).clamp(min=tiny)[..., None]
