"""A tensor's CRC-32, computed from the CRC-32s of its parts even if different ranks hold them.

A CRC is linear: each part counts as if zeros followed it up to the end, and the shares are XORed.
So ranks that hold boxes can verify a tensor that no single rank holds. If zlib-ng is installed, its
`crc32` is used, which computes the same number six times as fast. Lesson 14.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # torch is this library's only hard requirement
    from zlib import crc32

POLYNOMIAL = 0xEDB88320  # of zlib, PNG and Ethernet, the lowest power in the highest bit
ONE = 1 << 31  # the polynomial 1 in that order


def times(a: int, b: int) -> int:
    """Multiply two polynomials over GF(2), modulo the CRC's polynomial."""
    product, bit = 0, ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = (b >> 1) ^ POLYNOMIAL if b & 1 else b >> 1
    return product


def power(count: int) -> int:
    """Return x to the power of 8·count: the factor of a CRC when `count` bytes follow."""
    result, square = ONE, 1 << 23  # x**8
    while count:
        if count & 1:
            result = times(square, result)
        square = times(square, square)
        count >>= 1
    return result


class Shares:
    """The contribution of runs of bytes to the CRC of the tensor that contains them.

    The factor for each distance is cached, because a box has many runs but few distinct distances.
    """

    def __init__(self) -> None:
        self._power = functools.lru_cache(maxsize=64)(power)

    def of(self, runs: Iterable[tuple[int, memoryview]], total: int) -> int:
        """Return the share of (start, bytes) runs in `total` bytes; runs are sorted by start."""
        share, end = 0, 0
        for start, content in runs:
            stop = start + len(content)
            share = times(share, self._power(stop - end)) ^ crc32(content)
            end = stop
        return times(share, self._power(total - end))


def combined(shares: Iterable[int]) -> int:
    """Combine the shares of parts that cover all bytes exactly once into the tensor's CRC-32."""
    return functools.reduce(operator.xor, shares, 0)
