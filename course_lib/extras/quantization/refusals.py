"""What cannot be quantized or cut, and why: said before a code is computed.

A cut along the inputs falls between blocks, since a block has one scale. Appendix E2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.layout import cut


def check_weight(weight: Tensor, name: str = "the weight") -> Tensor:
    """`weight` in float32, or in float64 where it is that; refuses what has no codes."""
    if not weight.dtype.is_floating_point:
        raise TypeError(
            f"{name} is of {weight.dtype}: those may be codes already. Quantize the float weight, "
            "or call dequantize first"
        )
    if weight.dim() != 2:
        raise ValueError(
            f"{name} has the shape {tuple(weight.shape)}, and a linear layer's is "
            "[outputs, inputs]: reshape it so that a row is what one output reads"
        )
    if weight.numel() == 0:
        raise ValueError(
            f"{name} is empty ({tuple(weight.shape)}): there is no largest value to scale by. "
            "Under ZeRO-3 it may be a placeholder: gather it first"
        )
    wrong = int((~torch.isfinite(weight)).sum())
    if wrong:
        raise ValueError(
            f"{name} has {wrong} of {weight.numel()} values that are NaN or infinite: one of them "
            "is the scale of its whole block. Find the step that made them; do not quantize this"
        )
    return weight.detach() if weight.dtype == torch.float64 else weight.detach().float()


def check_block(inputs: int, block: int) -> None:
    """A block is even, since two codes share a byte, and blocks fill a row."""
    if isinstance(block, bool) or not isinstance(block, int) or block < 2 or block % 2:
        raise ValueError(f"block={block!r} has to be an even number, 2 or more: 64 is usual")
    if inputs % block:
        fitting = [b for b in (256, 128, 64, 32, 16, 8, 4, 2) if inputs % b == 0]
        raise ValueError(
            f"a row of {inputs} inputs is not filled by blocks of {block}: {inputs % block} would "
            "be left, and share a scale with the next row. "
            + (f"Take block={fitting[0]}" if fitting else "Pad the inputs to an even number")
        )


def spans_of_blocks(inputs: int, block: int, n: int) -> list[tuple[int, int]]:
    """The inputs of each of n ranks, in whole blocks, shared out as `cut` shares a dim."""
    if inputs % block:
        raise ValueError(f"{inputs} inputs are not whole blocks of {block}")
    sizes = [block * count for count in cut(inputs // block, n)]
    return [(sum(sizes[:rank]), sum(sizes[: rank + 1])) for rank in range(n)]


def cut_blocks(start: int, stop: int, block: int) -> tuple[int, int]:
    """The blocks of the inputs from start to stop; refuses a border inside a block."""
    off = [border for border in (start, stop) if border % block]
    if off:
        raise ValueError(
            f"a cut of the inputs at {off[0]} falls into a block of {block} "
            f"({off[0] // block * block} to {off[0] // block * block + block}), whose one scale "
            "two ranks would need, and whose parts alone have others. Cut between blocks "
            f"(refusals.spans_of_blocks), or take a block that divides {off[0]}"
        )
    return start // block, stop // block
