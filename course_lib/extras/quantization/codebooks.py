"""The 16 levels of four bits, int4, fp4 or nf4, and the search for the nearest level.

A block's weights are divided by its largest magnitude, so its levels are these levels times one
scale. Appendix E2.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import torch
from torch import Tensor

BITS, LEVELS = 4, 16


def int4() -> list[float]:
    """Return k/7 for k from −8 to 7. The lowest level is below −1; only GPTQ reaches it."""
    return [k / 7 for k in range(-8, 8)]


def fp4() -> list[float]:
    """Return E2M1 levels (1 sign, 2 exponent, 1 mantissa bit): ±(0, ½, 1, 1½, 2, 3, 4, 6)/6."""
    positive = []
    for exponent in range(4):
        for mantissa in range(2):
            if exponent == 0:  # subnormal: no leading 1
                positive.append(mantissa / 2)
            else:
                positive.append((1 + mantissa / 2) * 2 ** (exponent - 1))
    most = max(positive)
    return sorted([-x / most for x in positive] + [x / most for x in positive])


def nf4() -> list[float]:
    """Return normal quantiles divided by the largest: 7 below 0, 0 itself, and 8 above.

    Each interval between levels has roughly the same share of a normal sample. The outermost
    quantile leaves a tail of δ = (1/32 + 1/30)/2, since infinite quantiles cannot be levels.
    """
    delta = (1 / 32 + 1 / 30) / 2
    quantile = NormalDist().inv_cdf

    def half(count: int) -> list[float]:
        """Return `count` quantiles in equal steps of probability towards the median, without it."""
        step = (0.5 - delta) / count
        return [quantile(1 - delta - i * step) for i in range(count)]

    above, below = half(8), half(7)
    most = above[0]
    return sorted([-x / most for x in below] + [0.0] + [x / most for x in above])


CODES = {"int4": int4, "fp4": fp4, "nf4": nf4}


@cache
def levels(code: str) -> Tensor:
    """Return the (16,) levels of a code by its name, ascending, in float64."""
    if code not in CODES:
        raise ValueError(f"code={code!r} is not among {', '.join(CODES)}")
    return torch.tensor(CODES[code](), dtype=torch.float64)


def nearest(x: Tensor, code: str) -> Tensor:
    """Return the index of the nearest level for each element of x, as uint8."""
    table = levels(code).to(x.device, x.dtype)
    borders = (table[1:] + table[:-1]) / 2
    return torch.bucketize(x.contiguous(), borders).to(torch.uint8)
