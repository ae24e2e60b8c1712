"""Checks of the loss's arguments, which raise on all ranks even if only one rank finds an error.

If the padding was forgotten, the shapes may fit on the first ranks but not on the last, which would
raise while the others wait in the first all-reduce. Therefore a rank that refuses sends infinities
instead. Ranks that receive only infinities ask for the reason. Correct steps send nothing extra.
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
    """An error for wrong arguments on this rank, while other ranks' arguments may be right."""


class OwnEntries(NamedTuple):
    """A rank's part of the vocabulary, and the options of both losses, after all checks."""

    start: int  # the entry of this rank's first logit
    real: int  # the number of this rank's logits without padding
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
    """Return the targets as (t,) and this rank's part, or raise, on all ranks if any may wait.

    `x`, called `name` in errors, is the logits or states (…, f) for the targets (…). `width` is the
    number of logits that this rank has for each target.
    """
    n, rank = size_and_rank(group)
    padded = vocabulary if padded is None else padded
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r} is not among {', '.join(REDUCTIONS)}")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing={smoothing} must be from 0 to 1")
    if vocabulary < 1 or padded < vocabulary:
        raise ValueError(f"padded={padded} must be at least vocabulary={vocabulary}, and that 1")
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
    """Return the dtype for sums over a vocabulary, which is at least float32."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def check_targets(targets: Tensor, vocabulary: int, ignore_index: int) -> None:
    """Raise for a target without an entry, because no rank has it and its loss would be wrong."""
    wrong = ((targets < 0) | (targets >= vocabulary)) & (targets != ignore_index)
    if numbers(wrong.any(), False):
        first = int(targets[wrong][0])
        raise ValueError(
            f"{int(wrong.sum())} targets are out of range, the first of them {first}. Entries are "
            f"0 to {vocabulary - 1}, and ignore_index is {ignore_index}"
        )


def check_tokens(name: str, x: Tensor, targets: Tensor, group: Group) -> None:
    """Raise unless logits or states (…, width) have the shape of the targets (…)."""
    n, rank = size_and_rank(group)
    if targets.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"targets must be ids of int64 (or int32), but these are {targets.dtype}; targets with "
            "a probability for each entry are not supported here"
        )
    if not x.is_floating_point():
        raise TypeError(f"the loss takes {name} of a floating-point dtype, but these are {x.dtype}")
    tokens = x.shape[:-1]
    if tokens == targets.shape:
        return
    message = (
        f"rank {rank}: {name} of shape {tuple(x.shape)} need targets of shape {tuple(tokens)}, but "
        f"got {tuple(targets.shape)}"
    )
    long = targets.shape[1] if targets.dim() > 1 else 0
    sizes = cut(long, n)
    if len(tokens) == targets.dim() and long and sizes[rank] == tokens[1]:
        message += (
            f". Are these this rank's own of {long} tokens, as sequence=True leaves them? The loss "
            "takes all of them: join them with conjugates.gather(…, after='replicated')"
        )
        if long in sizes:  # with fewer tokens than ranks, one rank may have all
            raise RefusedHere(message)
    raise ValueError(message)


def check_words(width: int, vocabulary: int, padded: int, group: Group) -> None:
    """Raise if this rank's number of logits is wrong. Raise `RefusedHere` if the rule by which they
    were split gives any rank the right number."""
    n, rank = size_and_rank(group)
    start, stop = span(padded, n, rank)
    if width == stop - start:
        return
    whole = n > 1 and width in (vocabulary, padded)
    message = (
        f"rank {rank} has the logits {start} to {stop} of {padded} over {n} ranks, that is "
        f"{stop - start}, but got {width}."
    ) + (
        " Those are all logits, so each rank would count every entry, and the loss would be too "
        f"high by log {n}. Pass only this rank's logits, or use torch's cross_entropy"
        if whole
        else " Was the head sharded by a different rule, or padded to a different length (padded=)?"
    )
    rules = [cut(vocabulary, n), evenly(vocabulary, n), evenly(padded, n), [width] * n]
    rule = next(rule for rule in rules if rule[rank] == width)  # the last one does
    if any(a == b for a, b in zip(rule, cut(padded, n), strict=True)):
        raise RefusedHere(message)
    raise ValueError(message)


def refuse_together(refusal: RefusedHere, targets: Tensor, dtype: torch.dtype, group: Group):
    """Send infinities where the other ranks expect a message, then send the reason."""
    filled = torch.full((targets.numel(),), math.inf, dtype=dtype, device=targets.device)
    try:
        all_reduce(filled, group, "max", donated=True)
        _hear(refusal, group)
    except RuntimeError as error:  # the others have raised at once, without sending
        raise refusal from error


def check_not_refused(most: Tensor, group: Group) -> None:
    """Raise if another rank has refused, as shown by infinities in all ranks' largest logits."""
    if most.numel() and numbers((most == math.inf).all(), False):
        _hear(None, group)


def _hear(refusal: RefusedHere | None, group: Group) -> None:
    reports = who_says(refusal and str(refusal), [group])
    if refusal is not None:
        raise refusal
    if reports:  # none if the logits of all tokens are really infinite
        raise ValueError(
            f"rank {group.rank()}: no loss here either, since another rank refused. {reports[0][1]}"
        )


def evenly(total: int, n: int) -> list[int]:
    """Return n lengths that differ by at most one, longer first, by the other usual rule."""
    return [total // n + (r < total % n) for r in range(n)]
