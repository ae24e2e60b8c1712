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

from course_lib.collectives.agreement import who_says
from course_lib.collectives.call import Group
from course_lib.pretrained.header import CheckpointError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


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
    raise_first(reports, problem, groups)


def raise_first(
    reports: Sequence[tuple[int, str]], problem: Exception | None, groups: Sequence[Group]
) -> None:
    """Raise the first of (rank, sentence), if there is any; `problem` is what this rank met."""
    if reports:
        rank, text = reports[0]
        alike = len(reports) == math.prod(group.size() for group in groups)
        raise CheckpointError(text if alike else f"rank {rank}: {text}") from problem


@contextlib.contextmanager
def about(path: Path | str) -> Iterator[None]:
    """Errors of the body name this file: a write to an open one does not say which it was."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def not_written(error: OSError) -> str:
    """Why a file could not be written, and what to do; nothing that was there is touched."""
    if error.errno in FULL:
        remedy = "make room"
    elif error.errno in FORBIDDEN:
        remedy = "name a folder that this user can write into"
    elif error.errno in GONE:
        remedy = "a folder was taken away while it was written into; name one that stays"
    else:
        remedy = "look after the disk, or name a folder on another one"
    return (
        f"{error.filename} could not be written: {error.strerror}; {remedy}, and save again. The "
        "checkpoints that were there are as they were"
    )


def text_of(problem: Exception, in_words: Callable[[OSError], str]) -> str:
    """An error as a sentence."""
    if isinstance(problem, CheckpointError):
        return str(problem)
    if isinstance(problem, OSError) and problem.filename is not None:
        return in_words(problem)
    return f"{type(problem).__name__}: {problem}"
