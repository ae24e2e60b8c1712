"""What a word costs in bytes: streamed weights by the forward, tensor parallelism by the row.

At stage 3 a forward gathers Ψ(N−1)/N elements, whatever the batch. Over tp each row sends its own
partial sums, 2(1 + 2L)·h·(N−1)/N elements a token. Where the two meet is the break-even. Lesson 14.
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
    """Bytes that each of `n` ranks has to send for so many forwards, its rows whatever they are.

    `forwards` is the largest count of new words of any rank. A tied head is gathered again for its
    second use. `keep` and `units` are those of `zero.inference`; with `synced` a byte goes round
    before each forward and once at the end.
    """
    if n < 1 or forwards < 0:
        raise ValueError(f"n={n} ranks, 1 or more, make forwards={forwards}, 0 or more")
    outline, units = sketch_of(model, dtype, units)
    buckets, whole = units_of(outline, n, units, 0)
    away = whole | _kept(buckets, keep)
    streamed = {unit: module for unit, module in buckets.items() if unit not in away}
    shards = (unit.cut.shard * unit.dtype.itemsize for unit, *_ in uses_of(outline, streamed))
    one = sum(forms.all_gather(n, shard) for shard in shards)
    flags = (forwards + 1) * forms.all_reduce(n, 1) if synced else 0
    return forwards * one + flags


def _kept(units: Sequence[Bucket], keep: int) -> set[Bucket]:
    """The units that `keep` bytes leave whole: the smallest first."""
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
    """The fewest rows of all ranks together with which streamed weights send fewer bytes than
    tensor parallelism over the same ranks, for `count` words after prompts of `prompt` tokens.

    `item`: bytes of an element. None where one rank, or no word, sends nothing either way.
    """
    if n < 2 or count < 1:
        return None
    dtype = {8: torch.float64, 4: torch.float32, 2: torch.bfloat16}[item]
    streamed = Fraction(streamed_bytes(config, n, forwards=count, dtype=dtype, keep=keep))
    sizes = {"prompt": prompt, "count": count, "item": item}
    none, one = (Fraction(generation_bytes(config, n, 0, rows=b, **sizes)) for b in (0, 1))
    return max(1, (streamed - none) // (one - none) + 1)
