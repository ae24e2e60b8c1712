"""What goes wrong with a checkpoint is one sentence, the same on all ranks: file, cause and remedy.

A disk fills up on one rank alone, and its neighbours would wait for it in the next collective. The
sentence says on which rank, unless all of them have met the same. Lesson 14.
"""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from course_lib.collectives.agreement import who_says
from course_lib.collectives.call import Group
from course_lib.pretrained.header import CheckpointError

REMEDIES = {
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG): "make room",
    (errno.EACCES, errno.EPERM, errno.EROFS): "name a folder that this user can write into",
    (errno.ENOENT, errno.ENOTDIR, errno.ESTALE): (
        "a folder was taken away while it was written into; name one that stays"
    ),
}
T = TypeVar("T")


@contextlib.contextmanager
def agreed(groups: Sequence[Group], in_words: Callable[[OSError], str]) -> Iterator[None]:
    """Run the body, which may not talk to other ranks; once every rank of the groups is here, raise
    on all of them the error that the first of them has met."""
    problem: Exception | None = None
    try:
        yield
    except Exception as caught:
        problem = caught
    several = [group for group in groups if group.size() > 1]
    reports = who_says(None if problem is None else text_of(problem, in_words), several)
    _raise_first(reports, problem, groups)


def not_written(error: OSError) -> str:
    """Why a file could not be written, and what to do; nothing that was there is touched."""
    remedy = "look after the disk, or name a folder on another one"
    for numbers, other in REMEDIES.items():
        remedy = other if error.errno in numbers else remedy
    return (
        f"{error.filename} could not be written: {error.strerror}; {remedy}, and save again. The "
        "checkpoints that were there are as they were"
    )


def merged(
    groups: Sequence[Group],
    work: Callable[[], T],
    merge: Callable[[list[T]], T],
    in_words: Callable[[OSError], str] = not_written,
) -> T:
    """The values of `work()` on all ranks, merged; every rank calls it. Where a rank raises, all
    raise what the first of them has met, as in `agreed`.

    One exchange an axis, since each waits for the slowest rank. Values are merged axis after axis,
    so that what is sent does not grow with the number of ranks.
    """
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
    _raise_first(sorted(errors), problem, groups)
    return values[0]


def union(tables: list[dict[str, dict]]) -> dict[str, dict]:
    """{name: {key: value}} of several, in one."""
    every: dict[str, dict] = {}
    for table in tables:
        for name, inner in table.items():
            every.setdefault(name, {}).update(inner)
    return every


@contextlib.contextmanager
def about(path: Path | str) -> Iterator[None]:
    """Errors of the body name this file: a write to an open one does not say which it was."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def text_of(problem: Exception, in_words: Callable[[OSError], str]) -> str:
    """An error as a sentence."""
    if isinstance(problem, CheckpointError):
        return str(problem)
    if isinstance(problem, OSError) and problem.filename is not None:
        return in_words(problem)
    return f"{type(problem).__name__}: {problem}"


def _raise_first(
    reports: Sequence[tuple[int, str]], problem: Exception | None, groups: Sequence[Group]
) -> None:
    """Raise the first of (rank, sentence), if there is any; `problem` is what this rank met."""
    if reports:
        rank, text = reports[0]
        alike = len(reports) == math.prod(group.size() for group in groups)
        raise CheckpointError(text if alike else f"rank {rank}: {text}") from problem
