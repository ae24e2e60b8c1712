"""Which rank writes which rows: prompts are shared out over dp, and the texts come together again.

Weights are sharded, and rows are not: each rank's rows are its own, as in training. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

import torch.distributed as dist

from course_lib.collectives.call import Group, check_member

T = TypeVar("T")


def own_rows(rows: Sequence[T], group: Group) -> Sequence[T]:
    """This rank's part of rows that every rank has: in order, the first ranks one more where they
    do not divide. With more ranks than rows the last ranks have none."""
    check_member(group)
    n, rank = group.size(), group.rank()
    sizes = [len(rows) // n + (r < len(rows) % n) for r in range(n)]
    starts = [0, *accumulate(sizes)]
    return rows[starts[rank] : starts[rank + 1]]


def all_rows(rows: Sequence[T], group: Group) -> list[T]:
    """The rows of all ranks in order, on every rank: the way back from `own_rows`."""
    check_member(group)
    every: list = [None] * group.size()
    dist.all_gather_object(every, [_plain(row) for row in rows], group=group)
    return [row for part in every for row in part]


def _plain(row: object) -> object:
    return row.tolist() if hasattr(row, "tolist") else row
