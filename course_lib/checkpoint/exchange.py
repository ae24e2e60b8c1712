"""What each rank did and found, in one exchange: errors for all, and values merged on the way.

A save has few of them, since every one waits for the slowest rank. Values are merged axis after
axis, so that what is sent does not grow with the number of ranks. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch.distributed as dist

from course_lib.checkpoint.agreed import not_written, raise_first, text_of
from course_lib.collectives.call import Group

T = TypeVar("T")


def merged(
    groups: Sequence[Group],
    work: Callable[[], T],
    merge: Callable[[list[T]], T],
    in_words: Callable[[OSError], str] = not_written,
) -> T:
    """The values of `work()` on all ranks, merged; every rank calls it. Where a rank raises, all
    raise what the first of them has met, as in `agreed`."""
    problem, values, errors = None, [], []
    try:
        values = [work()]
    except Exception as error:
        problem, errors = error, [(dist.get_rank(), text_of(error, in_words))]
    for group in groups:
        if group.size() == 1:
            continue
        reports: list = [None] * group.size()
        dist.all_gather_object(reports, (values, errors), group=group)
        errors = [error for _, some in reports for error in some]
        values = [value for some, _ in reports for value in some]
        values = [] if errors else [merge(values)]
    raise_first(sorted(errors), problem, groups)
    return values[0]


def union(tables: list[dict[str, dict]]) -> dict[str, dict]:
    """{name: {key: value}} of several, in one."""
    every: dict[str, dict] = {}
    for table in tables:
        for name, inner in table.items():
            every.setdefault(name, {}).update(inner)
    return every
