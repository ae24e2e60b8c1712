"""Errors with one rank's files, which are raised on every rank, at once and with the cause.

If only one rank raised, the others would wait for a message that never arrives. Lesson 12.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from course_lib.collectives import all_reduce
from course_lib.collectives.agreement import who_says
from course_lib.collectives.call import Group, device_of, labelled
from course_lib.memory.formatting import this_rank


class OffloadError(OSError):
    """The error for files that an engine cannot use, or can no longer use, on every rank."""


def together(error: Exception | None, groups: Sequence[Group], more: str = "") -> None:
    """Raise an error on every rank if any rank passes one; all ranks must call this."""
    flag = torch.tensor(float(error is not None), device=device_of(*groups))
    with labelled("scalars"):
        for group in groups:
            flag = all_reduce(flag, group, "max", donated=True)
    if not flag.item():
        return
    report = None if error is None else (getattr(error, "errno", None), _in_words(error))
    reports = [report for _, report in who_says(report, groups)]
    words = "; ".join(dict.fromkeys(text for _, text in reports[:3]))
    others = f"; and on {len(reports) - 3} more ranks" if len(reports) > 3 else ""
    raise OffloadError(reports[0][0], f"{words}{others}{more}") from error


def _in_words(error: Exception) -> str:
    if not isinstance(error, OSError) or error.strerror is None:
        return f"{this_rank()}: {type(error).__name__}: {error}"
    where = f"{this_rank()}: {error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror}"
