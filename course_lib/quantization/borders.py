"""Where a cut along the inputs may fall: between blocks, since a block has one scale.

Appendix E2.
"""

from __future__ import annotations

from course_lib.layout import cut


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
            f"(borders.spans_of_blocks), or take a block that divides {off[0]}"
        )
    return start // block, stop // block
