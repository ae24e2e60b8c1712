"""The bytes of a quantized weight in closed form, and what training beside it still holds.

Appendix E2.
"""

from __future__ import annotations

from course_lib.extras.quantization.four_bit import SCALES


def int8_bytes(outputs: int, inputs: int, block: int | None = None) -> int:
    """A byte a weight, four a scale: one for each row, or for each block."""
    return outputs * inputs + 4 * outputs * (1 if block is None else inputs // block)


def four_bit_bytes(outputs: int, inputs: int, block: int = 64, *, nested: bool = False) -> int:
    """Half a byte a weight; four a scale, or one, and four for each 256 of them and a mean."""
    scales = outputs * (inputs // block)
    more = scales + 4 * -(-scales // SCALES) + 4 if nested else 4 * scales
    return outputs * inputs // 2 + more


def adam8_bytes(parameters: int, block: int = 256) -> int:
    """Two moments of a byte each, and a float32 scale for each block of both; without the two
    tables of 256 levels, which a process may share."""
    return 2 * parameters + 2 * 4 * -(-parameters // block)
