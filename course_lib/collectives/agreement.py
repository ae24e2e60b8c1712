"""Decisions that all ranks take together: checks for equal arguments, joint errors, reports.

If only one rank raises, the others wait in their next collective. Here every rank learns of the
problem first, so that either all of them raise or none does. Every rank of the groups must call
these functions. For a mesh, pass the groups of its axes in order. They use lesson 01's all-gather.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.call import Group, check_member, device_of, labelled
from course_lib.collectives.verbs import all_gather, all_reduce

SENT = 32  # bytes from each rank in `same_everywhere`: its number and 24 of a digest
IN_THEIR_SUM = "on no single rank, but in their sum"
SUMMED, SUMMED_ON_GPU = 1 << 15, 1 << 20  # most elements summed at once; 24 bytes each
T = TypeVar("T")


def same_everywhere(
    value: object,
    groups: Sequence[Group],
    what: str,
    remedy: str,
    *,
    error: type[Exception] = RuntimeError,
) -> None:
    """Raise `error` on all ranks unless `value`, compared by its repr, is the same on each of them.

    `what` is the message's first part. It may use {ranks} for the ranks that differ and {first} for
    the rank from which they differ, as in "{ranks} would take other rows than {first}".
    """
    for group in groups:
        check_member(group)
    if not groups:
        return
    digest = hashlib.sha256(repr(value).encode()).digest()[: SENT - 8]
    own = [dist.get_rank(), *torch.frombuffer(bytearray(digest), dtype=torch.int64).tolist()]
    every = torch.tensor([own], device=device_of(*groups))  # (1, 4)
    for group in groups:
        every = all_gather(every, group)  # (ranks so far, 4)
    digests = {rank: numbers for rank, *numbers in sorted(every.tolist())}
    first = min(digests)
    others = [rank for rank, numbers in digests.items() if numbers != digests[first]]
    if others:
        ranks = f"rank {' and '.join(map(str, others))}"
        sentence = what.format(ranks=ranks, first=f"rank {first}")
        raise error(f"rank {dist.get_rank()}: {sentence}; {remedy}")


@contextmanager
def all_or_none(
    groups: Sequence[Group], what: str, *, error: type[Exception] = RuntimeError
) -> Iterator[None]:
    """Run the body; once all ranks are done, raise its exception, or `error` for another rank's.

    The body must not communicate, because a failed rank tells the others only after the body.
    """
    problem: Exception | None = None
    try:
        yield
    except Exception as caught:
        problem = caught
    text = None
    if problem is not None:
        known = isinstance(problem, error)
        text = str(problem) if known else f"{type(problem).__name__}: {problem}"
    reports = who_says(text, groups)
    if problem is not None:
        raise problem
    if reports:
        rank, text = reports[0]
        raise error(f"{what} failed on rank {rank}, so it stopped here: {text}")


def any_goes_on(
    goes_on: bool, group: Group | None, what: str, problem: Exception | None = None
) -> bool:
    """Return True if any rank of the group continues; each rank contributes one byte. A problem on
    one rank raises an error on all. Without a group, only this rank counts."""
    if group is None:
        if problem is not None:
            raise problem
        return goes_on
    word = 2 if problem is not None else int(goes_on)
    state = torch.tensor(word, dtype=torch.uint8, device=device_of(group))
    with labelled("scalars"):
        state = all_reduce(state, group, "max", donated=True)
    if state.item() < 2:
        return bool(state.item())
    reports = who_says(None if problem is None else str(problem), [group])
    if problem is not None:
        raise problem
    raise ValueError(f"rank {dist.get_rank()}: {what}: {by_rank(reports)}")


def who_says(own: T | None, groups: Sequence[Group]) -> list[tuple[int, T]]:
    """Return sorted (rank, report) pairs of the ranks that pass a report; the others pass None."""
    reports = []
    if own is not None:
        reports = [(dist.get_rank() if groups else 0, own)]
    for group in groups:
        gathered: list = [None] * group.size()
        dist.all_gather_object(gathered, reports, group=group)
        reports = [report for part in gathered for report in part]
    return sorted(reports, key=lambda report: report[0])


def by_rank(reports: Sequence[tuple[int, str]], most: int = 4) -> str:
    """Join reports into one text, such as "on rank 0 this; and on 3 more ranks"."""
    words = [f"on rank {rank} {text}" for rank, text in reports[:most]]
    if len(reports) > most:
        words.append(f"and on {len(reports) - most} more ranks")
    return "; ".join(words)


@torch.no_grad()
def checksum(x: Tensor) -> Tensor:
    """Compute two integers from a tensor's bits: the first changes if any single element changes,
    the second also if two elements swap places."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    x = torch.view_as_real(x.detach()) if x.is_complex() else x.detach()
    total = torch.zeros(2, dtype=torch.int64, device=x.device)
    size = at_once(x.numel(), SUMMED_ON_GPU if x.is_cuda else SUMMED)
    odd = torch.arange(1, 2 * size, 2, device=x.device)  # odd factors lose no bit
    for number, part in enumerate(x.contiguous().view(-1).split(size)):
        bits = part.view(kinds[part.element_size()]).long()
        mixed = (bits >> 17).bitwise_xor_(bits).mul_(odd[: bits.numel()]).mul_(0x9E3779B1)
        total += torch.stack((bits.sum(), mixed.sum() * (2 * number + 1)))
    return total


def at_once(numel: int, most: int = SUMMED) -> int:
    """Return the number of elements summed at once, which is smaller for a small tensor."""
    return min(most, 1024 + numel // 64)


def summing(numel: int) -> int:
    """Return the bytes that a checksum needs: three integers for each element summed at once."""
    once = at_once(numel)
    return 8 * (once + 2 * min(once, numel))
