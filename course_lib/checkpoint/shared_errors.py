"""A checkpoint error as one sentence, the same on all ranks: file, cause and remedy.

If a disk fills up on one rank, the others would wait for that rank in the next collective. The
sentence names the rank unless all ranks have the same error. Lesson 14.
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
        "a folder was removed during the writing; name one that remains"
    ),
}
T = TypeVar("T")


@contextlib.contextmanager
def agreed(groups: Sequence[Group], in_words: Callable[[OSError], str]) -> Iterator[None]:
    """Run the body, which must not communicate with other ranks. Once every rank of the groups has
    finished, all ranks raise the first rank's error, if any."""
    problem: Exception | None = None
    try:
        yield
    except Exception as caught:
        problem = caught
    several = [group for group in groups if group.size() > 1]
    reports = who_says(None if problem is None else text_of(problem, in_words), several)
    _raise_first(reports, problem, groups)


def not_written(error: OSError) -> str:
    """Explain why a file could not be written, and the remedy; existing files stay unchanged."""
    remedy = "check the disk, or name a folder on a different disk"
    for numbers, other in REMEDIES.items():
        remedy = other if error.errno in numbers else remedy
    return (
        f"{error.filename} could not be written ({error.strerror}); {remedy}, and save again. The "
        "existing checkpoints have not changed"
    )


def merged(
    groups: Sequence[Group],
    work: Callable[[], T],
    merge: Callable[[list[T]], T],
    in_words: Callable[[OSError], str] = not_written,
) -> T:
    """Merge the values of `work()` on all ranks; every rank calls it. If a rank raises, all ranks
    raise the first rank's error, as in `agreed`.

    There is only one exchange per axis, since each exchange waits for the slowest rank. Values
    are merged after each axis, so that the message size does not grow with the number of ranks.
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
    """Merge several {name: {key: value}} tables into one."""
    every: dict[str, dict] = {}
    for table in tables:
        for name, inner in table.items():
            every.setdefault(name, {}).update(inner)
    return every


@contextlib.contextmanager
def about(path: Path | str) -> Iterator[None]:
    """Add this file's name to the body's OSErrors, since errors of an open file lack it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def text_of(problem: Exception, in_words: Callable[[OSError], str]) -> str:
    """Turn an error into a sentence."""
    if isinstance(problem, CheckpointError):
        return str(problem)
    if isinstance(problem, OSError) and problem.filename is not None:
        return in_words(problem)
    return f"{type(problem).__name__}: {problem}"


def _raise_first(
    reports: Sequence[tuple[int, str]], problem: Exception | None, groups: Sequence[Group]
) -> None:
    """Raise the first of (rank, sentence), if any; `problem` is this rank's error."""
    if reports:
        rank, text = reports[0]
        alike = len(reports) == math.prod(group.size() for group in groups)
        raise CheckpointError(text if alike else f"rank {rank}: {text}") from problem
