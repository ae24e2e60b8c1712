"""The CRC-32 of a tensor out of the CRC-32s of its parts, wherever those lie and whoever has them.

A CRC is linear: each part counts as if zeros followed it up to the end, and the shares are XORed.
So ranks that hold boxes vouch together for a tensor that none of them has. `crc32` is zlib-ng's
where that is installed: the same number, six times as fast. Lesson 14.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # torch is all that this library cannot do without
    from zlib import crc32

POLYNOMIAL = 0xEDB88320  # of zlib, PNG and Ethernet, the lowest power in the highest bit
ONE = 1 << 31  # the polynomial 1 in that order


def times(a: int, b: int) -> int:
    """The product of two polynomials over GF(2), modulo the CRC's."""
    product, bit = 0, ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = (b >> 1) ^ POLYNOMIAL if b & 1 else b >> 1
    return product


def power(count: int) -> int:
    """x to the power of 8·count: what a CRC is multiplied by when `count` bytes follow."""
    result, square = ONE, 1 << 23  # x**8
    while count:
        if count & 1:
            result = times(square, result)
        square = times(square, square)
        count >>= 1
    return result


class Shares:
    """What runs of bytes count towards the CRC of the whole that they lie in.

    The factor of a distance is kept: a box has few, however many runs it consists of.
    """

    def __init__(self) -> None:
        self._power = functools.lru_cache(maxsize=64)(power)

    def of(self, runs: Iterable[tuple[int, memoryview]], total: int) -> int:
        """The share of (start, bytes) in `total` bytes; runs come in the order of their starts."""
        share, end = 0, 0
        for start, content in runs:
            stop = start + len(content)
            share = times(share, self._power(stop - end)) ^ crc32(content)
            end = stop
        return times(share, self._power(total - end))


def combined(shares: Iterable[int]) -> int:
    """The CRC-32 of the whole, of the shares of parts that cover it once."""
    return functools.reduce(operator.xor, shares, 0)
