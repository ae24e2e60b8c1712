"""Two codes of four bits in a byte: the first in the high half, as bitsandbytes has them.

Appendix E2.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pack(codes: Tensor) -> Tensor:
    """(…, 2k) codes from 0 to 15 to (…, k) bytes."""
    if codes.dtype != torch.uint8 or (codes.numel() and int(codes.max()) > 15):
        raise ValueError("four bits hold codes from 0 to 15, as uint8: these are others")
    if codes.shape[-1] % 2:
        raise ValueError(
            f"{codes.shape[-1]} codes in a row do not fill bytes of two: a half would belong to "
            "the next row. Take an even number of inputs"
        )
    return (codes[..., ::2] << 4) | codes[..., 1::2]


def unpack(packed: Tensor) -> Tensor:
    """(…, k) bytes to (…, 2k) codes."""
    return torch.stack((packed >> 4, packed & 15), dim=-1).flatten(-2)
