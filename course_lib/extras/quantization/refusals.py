"""Checks before quantization, which refuse weights that cannot be quantized or split.

A split along the inputs must fall between blocks, because a block has one scale. Appendix E2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.layout import cut


def check_weight(weight: Tensor, name: str = "the weight") -> Tensor:
    """Return `weight` in float32 (float64 stays float64), or raise if it cannot be quantized."""
    if not weight.dtype.is_floating_point:
        raise TypeError(
            f"{name} is of {weight.dtype}, so it may hold codes already. Quantize the float "
            "weight, or call dequantize first"
        )
    if weight.dim() != 2:
        raise ValueError(
            f"{name} has the shape {tuple(weight.shape)}, but a linear layer's is "
            "[outputs, inputs]: reshape it so that each row has the weights of one output"
        )
    if weight.numel() == 0:
        raise ValueError(
            f"{name} is empty ({tuple(weight.shape)}), so there is no largest value to scale by. "
            "Under ZeRO-3 it may be a placeholder: gather it first"
        )
    wrong = int((~torch.isfinite(weight)).sum())
    if wrong:
        raise ValueError(
            f"{name} has {wrong} of {weight.numel()} values that are NaN or infinite, and such a "
            "value becomes the scale of its block. Find the step that made them before you quantize"
        )
    return weight.detach() if weight.dtype == torch.float64 else weight.detach().float()


def check_block(inputs: int, block: int) -> None:
    """Raise unless a block is even, because two codes share a byte, and blocks fill a row."""
    if isinstance(block, bool) or not isinstance(block, int) or block < 2 or block % 2:
        raise ValueError(f"block={block!r} must be an even number, 2 or more; 64 is usual")
    if inputs % block:
        fitting = [b for b in (256, 128, 64, 32, 16, 8, 4, 2) if inputs % b == 0]
        raise ValueError(
            f"a row of {inputs} inputs is not filled by blocks of {block}: {inputs % block} would "
            "be left and would share a scale with the next row. "
            + (f"Take block={fitting[0]}" if fitting else "Pad the inputs to an even number")
        )


def spans_of_blocks(inputs: int, block: int, n: int) -> list[tuple[int, int]]:
    """Return each rank's range of inputs, in full blocks, distributed as `cut` splits a dim."""
    if inputs % block:
        raise ValueError(f"{inputs} inputs do not divide into blocks of {block}")
    sizes = [block * count for count in cut(inputs // block, n)]
    return [(sum(sizes[:rank]), sum(sizes[: rank + 1])) for rank in range(n)]


def cut_blocks(start: int, stop: int, block: int) -> tuple[int, int]:
    """Return the range of blocks for inputs start to stop; raise if a border is inside a block."""
    off = [border for border in (start, stop) if border % block]
    if off:
        raise ValueError(
            f"a split of the inputs at {off[0]} is inside a block of {block} "
            f"({off[0] // block * block} to {off[0] // block * block + block}), so two ranks would "
            "need its single scale, although their parts have other maxima. Split between blocks "
            f"(refusals.spans_of_blocks), or take a block that divides {off[0]}"
        )
    return start // block, stop // block
