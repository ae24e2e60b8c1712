"""What runs on the judge's ranks for `dropout_streams`: masks of copies and of heads, in an order
that shows where a stream goes wrong. Lesson 05.

A replica after the other is seeded on the same ranks; the ranks of the group are its tp ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.collectives.call import Group

ELEMENTS = 4000  # of a mask; half of them are dropped
COPIES = ("first", "after heads", "after uneven heads", "after an error")
HEADS = ("first", "second", "uneven")
SWALLOWED = "the error is gone"
MOST = 1000  # of dp_rank and of tp_rank
# (dp_rank, tp_rank): a full row and a full column, so that sums of either kind meet, and ends.
PAIRS = [(0, tp) for tp in range(MOST + 1)] + [(dp, 0) for dp in range(1, MOST + 1)]
PAIRS += [pair for few in range(1, 10) for pair in ((few, few), (few, MOST), (MOST, few))]
PAIRS += [
    (a, 10 * b) for a in range(1, 10) for b in range(1, 10)
]  # 1 and 10, written, are 11 and 0
COMMON = [(0, 0), (0, 1), (2, 0), (0, MOST), (1, MOST), (MOST, MOST)]


class Stumble(Exception):
    """Raised by the check inside a private block."""


def masks(function: Callable, group: Group, seed: int, replicas: int) -> dict:
    """The masks of each replica on this tp rank; then those of replica 0 again, and of a new seed.

    Copies' and heads' masks are (number, ELEMENTS), by replica.
    """
    tp_rank = group.rank()
    out, facts = bench.watched(lambda: [one(function, seed, dp, tp_rank) for dp in range(replicas)])
    told = {"ops": facts["ops"], "problem": next((p for _, _, p in out if p), "")}
    if told["problem"]:
        return told
    again, _ = bench.watched(lambda: one(function, seed, 0, tp_rank))
    other, _ = bench.watched(lambda: one(function, seed + 1, 0, tp_rank))
    return {
        **told,
        "copies": torch.stack([copies for copies, _, _ in out]),  # (dp, 4, ELEMENTS)
        "heads": torch.stack([heads for _, heads, _ in out]),  # (dp, 3, ELEMENTS)
        "again": all(torch.equal(a, b) for a, b in zip(again[:2], out[0][:2], strict=True)),
        "seed used": not any(torch.equal(a, b) for a, b in zip(other[:2], out[0][:2], strict=True)),
    }


def seeds(function: Callable, group: Group, seed: int) -> dict:
    """The first numbers of the streams of many ranks, of which this process plays some.

    `drawn` is (pairs, 2, 2): of each pair two numbers of the shared stream, then two of a private
    block. What is `common` is played by every process, and has a second block.
    """
    pairs = PAIRS[group.rank() :: group.size()]
    drawn, _ = bench.watched(lambda: [_first(function, seed, *pair, 1) for pair in pairs])
    common, _ = bench.watched(lambda: [_first(function, seed, *pair, 2) for pair in COMMON])
    return {"drawn": torch.stack(drawn), "common": torch.stack(common)}


def _first(function: Callable, seed: int, dp: int, tp: int, blocks: int) -> Tensor:
    private = function(seed, dp, tp)
    some = [torch.rand(2, dtype=torch.float64)]
    for _ in range(blocks):
        with private():
            some.append(torch.rand(2, dtype=torch.float64))
    return torch.stack(some)


def one(function: Callable, seed: int, dp: int, tp_rank: int) -> tuple[Tensor, Tensor, str]:
    """Seed, then draw as a block does: a copy's mask, heads' masks, a copy's mask, …"""
    torch.manual_seed(987 + tp_rank)  # whatever was before, and another on each rank
    private = function(seed, dp, tp_rank)
    if private is None:
        return torch.empty(0), torch.empty(0), "None"
    if not callable(private) or not hasattr(private(), "__enter__"):
        return torch.empty(0), torch.empty(0), type(private).__name__
    copies, heads = [_mask()], []
    for _ in range(2):  # two layers of heads, and no copy between them
        with private():
            heads.append(_mask())
    copies.append(_mask())
    with private():  # heads that do not divide: ranks draw different numbers of numbers
        heads.append(_mask(ELEMENTS + 500 * (tp_rank + 1))[:ELEMENTS])
    copies.append(_mask())
    passed_on = False
    try:
        with private():
            _mask(77 * (tp_rank + 1))
            raise Stumble
    except Stumble:
        passed_on = True
    if not passed_on:
        return torch.empty(0), torch.empty(0), SWALLOWED
    copies.append(_mask())
    return torch.stack(copies), torch.stack(heads), ""


def _mask(elements: int = ELEMENTS) -> Tensor:
    """Which elements torch's dropout keeps, by whatever stream is in force."""
    return F.dropout(torch.ones(elements), 0.5) > 0
