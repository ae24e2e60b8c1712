"""What the loss refuses, in words and on all ranks alike, though one rank alone may see the fault.

A forgotten padding fits the first ranks and not the last: these would raise while those wait for
them in the first sum. So a rank whose neighbours may wait sends infinities in its place; a rank
that sees nothing but infinities asks who refused, and why. No step that is right sends more.
Lesson 07.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.collectives import all_reduce
from course_lib.collectives.agreement import who_says
from course_lib.collectives.call import Group, size_and_rank
from course_lib.layout import cut, span
from course_lib.meta import numbers

REDUCTIONS = ("mean", "sum", "none")


class RefusedHere(ValueError):
    """What this rank was handed does not fit, and what others were handed may."""


class OwnEntries(NamedTuple):
    """What of the vocabulary a rank has, and what counts: the arguments of both losses, checked."""

    start: int  # of this rank's logits among all
    real: int  # of this rank's logits, those of words
    vocabulary: int
    ignore_index: int
    smoothing: float
    check: bool

    @property
    def of_gradient(self) -> tuple[int, int, int, float]:
        return self.start, self.real, self.vocabulary, self.smoothing


def checked(
    name: str,
    x: Tensor,
    width: int,
    targets: Tensor,
    group: Group,
    vocabulary: int,
    padded: int | None,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    check: bool,
) -> tuple[Tensor, OwnEntries]:
    """The targets as (t,), and this rank's part; or an error, on all ranks if they may wait for it.

    `x`, called `name` in errors, are logits or states (…, f) of the targets (…), and `width` is the
    number of logits that this rank has for each of them.
    """
    n, rank = size_and_rank(group)
    padded = vocabulary if padded is None else padded
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r} is none of {', '.join(REDUCTIONS)}")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing={smoothing} has to lie from 0 to 1")
    if vocabulary < 1 or padded < vocabulary:
        raise ValueError(f"padded={padded} has to be at least vocabulary={vocabulary}, and that 1")
    try:
        check_tokens(name, x, targets, group)
        check_words(width, vocabulary, padded, group)
    except RefusedHere as refused:
        if check:
            refuse_together(refused, targets, wide(x), group)
        raise
    flat = targets.reshape(-1)
    if check:
        check_targets(flat, vocabulary, ignore_index)
    start, stop = span(padded, n, rank)
    real = max(0, min(stop, vocabulary) - start)
    return flat, OwnEntries(start, real, vocabulary, ignore_index, float(smoothing), check)


def wide(logits: Tensor) -> torch.dtype:
    """Sums over a vocabulary are taken in float32 at least."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def check_targets(targets: Tensor, vocabulary: int, ignore_index: int) -> None:
    """Refuse a target that is no word: it would belong to no rank, and its loss would be wrong."""
    wrong = ((targets < 0) | (targets >= vocabulary)) & (targets != ignore_index)
    if numbers(wrong.any(), False):
        first = int(targets[wrong][0])
        raise ValueError(
            f"{int(wrong.sum())} targets are out of range, the first of them {first}: words are 0 "
            f"to {vocabulary - 1}, and ignore_index is {ignore_index}"
        )


def check_tokens(name: str, x: Tensor, targets: Tensor, group: Group) -> None:
    """Refuse logits or states (…, width) that are not of these targets (…)."""
    n, rank = size_and_rank(group)
    if targets.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"targets are ids of int64 (or int32), and these are {targets.dtype}; a target that is "
            "a probability for each word is not supported here"
        )
    if not x.is_floating_point():
        raise TypeError(f"the loss takes {name} of a floating-point dtype, and these are {x.dtype}")
    tokens = x.shape[:-1]
    if tokens == targets.shape:
        return
    message = (
        f"rank {rank}: {name} of shape {tuple(x.shape)} need targets of shape {tuple(tokens)}, and "
        f"got {tuple(targets.shape)}"
    )
    long = targets.shape[1] if targets.dim() > 1 else 0
    sizes = cut(long, n)
    if len(tokens) == targets.dim() and long and sizes[rank] == tokens[1]:
        message += (
            f". Are these this rank's own of {long} tokens, as sequence=True leaves them? The loss "
            "takes all of them: join them with conjugates.gather(…, after='replicated')"
        )
        if long in sizes:  # with fewer tokens than ranks, one rank's own are all
            raise RefusedHere(message)
    raise ValueError(message)


def check_words(width: int, vocabulary: int, padded: int, group: Group) -> None:
    """Refuse a number of logits that is not this rank's: by `RefusedHere` if the rule by which they
    were cut, the first that gives this rank its number, gives another rank what it expects."""
    n, rank = size_and_rank(group)
    start, stop = span(padded, n, rank)
    if width == stop - start:
        return
    whole = n > 1 and width in (vocabulary, padded)
    message = (
        f"rank {rank}: of {padded} logits over {n} ranks, this one has {start} to {stop}, that is "
        f"{stop - start}, and got {width}."
    ) + (
        " Those are all: each rank would count every word, and the loss would be too high by log "
        f"{n}. Pass this rank's own, or use torch's cross_entropy"
        if whole
        else " Was the head cut by another rule, or padded to another length (padded=)?"
    )
    rules = [cut(vocabulary, n), evenly(vocabulary, n), evenly(padded, n), [width] * n]
    rule = next(rule for rule in rules if rule[rank] == width)  # the last one does
    if any(a == b for a, b in zip(rule, cut(padded, n), strict=True)):
        raise RefusedHere(message)
    raise ValueError(message)


def refuse_together(refusal: RefusedHere, targets: Tensor, dtype: torch.dtype, group: Group):
    """Instead of the loss: what the others wait for, filled with infinities; then the reason."""
    filled = torch.full((targets.numel(),), math.inf, dtype=dtype, device=targets.device)
    try:
        all_reduce(filled, group, "max", donated=True)
        _hear(refusal, group)
    except RuntimeError as error:  # the others have refused at once, and did not come
        raise refusal from error


def check_not_refused(most: Tensor, group: Group) -> None:
    """Raise where another rank has refused, which shows in the largest logits of all ranks."""
    if most.numel() and numbers((most == math.inf).all(), False):
        _hear(None, group)


def _hear(refusal: RefusedHere | None, group: Group) -> None:
    reports = who_says(refusal and str(refusal), [group])
    if refusal is not None:
        raise refusal
    if reports:  # none where the logits of all tokens are infinite indeed
        raise ValueError(
            f"rank {group.rank()}: no loss here either, since another rank refused. {reports[0][1]}"
        )


def evenly(total: int, n: int) -> list[int]:
    """The other usual rule for a dim: parts that differ by one at most, the longer ones first."""
    return [total // n + (r < total % n) for r in range(n)]
