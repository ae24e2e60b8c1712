"""The cost of a token in bytes: streaming has a cost per forward pass, tensor parallelism per row.

At stage 3 a forward pass gathers Ψ(N−1)/N elements for any batch. Over tp the partial sums of each
row are sent, 2(1 + 2L)·h·(N−1)/N elements per token. At the break-even both are equal. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import nn

from course_lib.estimate.memory import units_of
from course_lib.estimate.over_tp import generation_bytes
from course_lib.estimate.shape import sketch_of
from course_lib.estimate.traffic import uses_of
from course_lib.gpt import Config
from course_lib.ledger import forms
from course_lib.zero.partition import Bucket


def streamed_bytes(
    model: nn.Module | Config,
    n: int,
    *,
    forwards: int,
    dtype: torch.dtype | None = None,
    units: Sequence[nn.Module] | None = None,
    keep: int = 0,
    synced: bool = True,
) -> int | float:
    """Return the bytes that each of `n` ranks sends in `forwards` passes with any number of rows.

    `forwards` is the largest number of new tokens on any rank. A tied head is gathered twice.
    `keep` and `units` are arguments of `zero.inference`. `synced` adds one byte per rank before
    each forward pass and once at the end.
    """
    if n < 1 or forwards < 0:
        raise ValueError(f"n={n} must be 1 or more, and forwards={forwards} must be 0 or more")
    outline, units = sketch_of(model, dtype, units)
    buckets, whole = units_of(outline, n, units, 0)
    away = whole | _kept(buckets, keep)
    streamed = {unit: module for unit, module in buckets.items() if unit not in away}
    shards = (unit.cut.shard * unit.dtype.itemsize for unit, *_ in uses_of(outline, streamed))
    one = sum(forms.all_gather(n, shard) for shard in shards)
    flags = (forwards + 1) * forms.all_reduce(n, 1) if synced else 0
    return forwards * one + flags


def _kept(units: Sequence[Bucket], keep: int) -> set[Bucket]:
    """Return the units that stay gathered within `keep` bytes, the smallest first."""
    found = set()
    for unit in sorted(units, key=lambda unit: unit.padded * unit.dtype.itemsize):
        keep -= unit.padded * unit.dtype.itemsize
        if keep < 0:
            break
        found.add(unit)
    return found


def break_even_rows(
    config: Config, n: int, *, prompt: int, count: int, item: int, keep: int = 0
) -> int | None:
    """Return the fewest rows, over all ranks, for which streaming sends fewer bytes than tensor
    parallelism for `count` tokens after prompts of `prompt` tokens.

    `item` is the bytes of an element. For one rank or no token, the result is None.
    """
    if n < 2 or count < 1:
        return None
    dtype = {8: torch.float64, 4: torch.float32, 2: torch.bfloat16}[item]
    streamed = Fraction(streamed_bytes(config, n, forwards=count, dtype=dtype, keep=keep))
    sizes = {"prompt": prompt, "count": count, "item": item}
    none, one = (Fraction(generation_bytes(config, n, 0, rows=b, **sizes)) for b in (0, 1))
    return max(1, (streamed - none) // (one - none) + 1)
