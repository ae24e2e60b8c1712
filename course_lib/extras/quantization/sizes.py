"""Closed forms of the bytes of a quantized weight and of 8-bit Adam states.

Appendix E2.
"""

from __future__ import annotations

from course_lib.extras.quantization.four_bit import SCALES


def int8_bytes(outputs: int, inputs: int, block: int | None = None) -> int:
    """Count one byte per weight and four per scale, with one scale for each row or block."""
    return outputs * inputs + 4 * outputs * (1 if block is None else inputs // block)


def four_bit_bytes(outputs: int, inputs: int, block: int = 64, *, nested: bool = False) -> int:
    """Count half a byte per weight, and four per scale, or about one per scale if nested."""
    scales = outputs * (inputs // block)
    more = scales + 4 * -(-scales // SCALES) + 4 if nested else 4 * scales
    return outputs * inputs // 2 + more


def adam8_bytes(parameters: int, block: int = 256) -> int:
    """Count two moments of one byte per parameter and a float32 scale for each block of both. The
    two tables of 256 levels, which all states may share, are not counted."""
    return 2 * parameters + 2 * 4 * -(-parameters // block)
