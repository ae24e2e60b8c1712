"""Decisions that all ranks take alike: equal arguments, one verdict, who reports what.

A rank that raises alone leaves the others waiting in their next collective. Here every rank hears
of it first, and then all of them raise, or none does. Every rank of the groups has to call these
functions; of a mesh, `groups` are the axes one after another. Made of lesson 01's all-gather.
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

SENT = 32  # bytes from each rank in `same_everywhere`: its number, and 24 of a digest
IN_THEIR_SUM = "on no rank alone, but in their sum"
SUMMED, SUMMED_ON_GPU = 1 << 15, 1 << 20  # elements summed at once, at most: each takes 24 bytes
T = TypeVar("T")


def same_everywhere(
    value: object,
    groups: Sequence[Group],
    what: str,
    remedy: str,
    *,
    error: type[Exception] = RuntimeError,
) -> None:
    """Raise `error` on all ranks unless `value`, by its repr, is the same on each of them.

    `what` is the sentence that goes into the message, with {ranks} for those that differ and
    {first} for the rank they differ from, such as "{ranks} would take other rows than {first}".
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
    """Run the body; raise its exception, or `error` with another rank's, once every rank is here.

    The body may not talk to other ranks: one that fails in it says so only at its end.
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
    """Whether any rank of the group goes on, asked with one byte from each. A problem of one is
    raised on all of them. Without a group this rank is asked alone."""
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
    """(rank, report) of every rank that has one, by rank; a rank without a report passes None."""
    reports = []
    if own is not None:
        reports = [(dist.get_rank() if groups else 0, own)]
    for group in groups:
        gathered: list = [None] * group.size()
        dist.all_gather_object(gathered, reports, group=group)
        reports = [report for part in gathered for report in part]
    return sorted(reports, key=lambda report: report[0])


def by_rank(reports: Sequence[tuple[int, str]], most: int = 4) -> str:
    """Reports as text: "on rank 0 this; on rank 2 that; and on 3 ranks more"."""
    words = [f"on rank {rank} {text}" for rank, text in reports[:most]]
    if len(reports) > most:
        words.append(f"and on {len(reports) - most} ranks more")
    return "; ".join(words)


@torch.no_grad()
def checksum(x: Tensor) -> Tensor:
    """Two whole numbers of a tensor's bits: one changes with any single element, the other also
    when two elements change places."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    x = torch.view_as_real(x.detach()) if x.is_complex() else x.detach()
    total = torch.zeros(2, dtype=torch.int64, device=x.device)
    size = at_once(x.numel(), SUMMED_ON_GPU if x.is_cuda else SUMMED)
    odd = torch.arange(1, 2 * size, 2, device=x.device)  # a product with it loses no bit
    for number, part in enumerate(x.contiguous().view(-1).split(size)):
        bits = part.view(kinds[part.element_size()]).long()
        mixed = (bits >> 17).bitwise_xor_(bits).mul_(odd[: bits.numel()]).mul_(0x9E3779B1)
        total += torch.stack((bits.sum(), mixed.sum() * (2 * number + 1)))
    return total


def at_once(numel: int, most: int = SUMMED) -> int:
    """How many elements of a tensor are summed at once: the sum of a small one needs little."""
    return min(most, 1024 + numel // 64)


def summing(numel: int) -> int:
    """Bytes that a checksum needs: of what is summed at once, three whole numbers an element."""
    once = at_once(numel)
    return 8 * (once + 2 * min(once, numel))
