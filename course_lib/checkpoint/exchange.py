"""What each rank did and found, in one exchange: errors for all, and values merged on the way.

A save has few of them, since every one waits for the slowest rank. Values are merged axis after
axis, so that what is sent does not grow with the number of ranks. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch.distributed as dist

from course_lib.collectives.call import Group
from course_lib.pretrained.header import CheckpointError

T = TypeVar("T")


def merged(
    groups: Sequence[Group], what: str, work: Callable[[], T], merge: Callable[[list[T]], T]
) -> T:
    """The values of `work()` on all ranks, merged; every rank calls it. Where a rank raises, it
    raises that, and all others a CheckpointError which says so."""
    problem, values, errors = None, [], []
    try:
        values = [work()]
    except Exception as error:
        known = isinstance(error, CheckpointError)
        problem = error
        errors = [(dist.get_rank(), str(error) if known else f"{type(error).__name__}: {error}")]
    for group in groups:
        if group.size() == 1:
            continue
        reports: list = [None] * group.size()
        dist.all_gather_object(reports, (values, errors), group=group)
        errors = [error for _, some in reports for error in some]
        values = [value for some, _ in reports for value in some]
        values = [] if errors else [merge(values)]
    if problem is not None:
        raise problem
    if errors:
        rank, text = min(errors)
        raise CheckpointError(f"{what} failed on rank {rank}, so it stopped here: {text}")
    return values[0]


def union(tables: list[dict[str, dict]]) -> dict[str, dict]:
    """{name: {key: value}} of several, in one."""
    every: dict[str, dict] = {}
    for table in tables:
        for name, inner in table.items():
            every.setdefault(name, {}).update(inner)
    return every
