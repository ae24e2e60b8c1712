"""Absmax int8: one scale for each row, or for each block of a row, and codes from −127 to 127.

The scale is the largest magnitude / 127, so the largest value is exact and 0 stays 0. Appendix E2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from course_lib.extras.quantization.refusals import check_block, check_weight, cut_blocks

MOST = 127


@dataclass(frozen=True, eq=False)
class Int8:
    """A weight [outputs, inputs] as codes and scales; `block` None means one scale per row."""

    codes: Tensor  # (outputs, inputs), int8
    scales: Tensor  # (outputs, inputs/block) or (outputs, 1), float32
    block: int | None

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.codes.shape)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return codes times scales, (outputs, inputs)."""
        codes, scales = self.codes.to(dtype), self.scales.to(dtype)
        if self.block is None:
            return codes * scales
        return (codes.unflatten(1, (-1, self.block)) * scales[..., None]).flatten(1)

    def cut_outputs(self, start: int, stop: int) -> Int8:
        """Return the part for some outputs, whose scales are in the same rows."""
        return replace(self, codes=self.codes[start:stop], scales=self.scales[start:stop])

    def cut_inputs(self, start: int, stop: int) -> Int8:
        """Return the part for some inputs, with a row's single scale or the blocks' scales."""
        codes = self.codes[:, start:stop]
        if self.block is None:
            return replace(self, codes=codes)
        first, last = cut_blocks(start, stop, self.block)
        return replace(self, codes=codes, scales=self.scales[:, first:last])

    def to(self, device: torch.device | str) -> Int8:
        return replace(self, codes=self.codes.to(device), scales=self.scales.to(device))


def quantize_int8(weight: Tensor, block: int | None = None, *, most: Tensor | None = None) -> Int8:
    """(outputs, inputs) floats -> codes with a scale for each row or block.

    `most`, (outputs, 1), replaces the largest magnitudes of the rows. If this weight has only a
    part of each row, pass the full rows' maxima.
    """
    weight = check_weight(weight)
    if block is not None:
        check_block(weight.shape[1], block)
        if most is not None:
            raise ValueError("`most` has maxima of full rows, so pass either `most` or `block`")
    parts = weight.unflatten(1, (-1, block or weight.shape[1]))  # (outputs, blocks, block)
    largest = parts.abs().amax(2) if most is None else most.to(weight.dtype)
    scales = (largest / MOST).float()
    codes = parts / scales.to(weight.dtype).clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    codes = codes.round().clamp(-MOST, MOST).to(torch.int8).flatten(1)
    return Int8(codes, scales, block)
