"""A piece of work that succeeds on all ranks or fails on all: nobody waits for one that gave up.

What goes wrong with a file goes wrong on one rank alone, and the next collective would hang. Used
around every step that touches the disk. Lesson 08.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist

from course_lib.collectives.call import Group
from course_lib.pretrained.header import CheckpointError


@contextmanager
def together(groups: Sequence[Group], what: str) -> Iterator[None]:
    """Run the body; raise its error, or another rank's, once every rank of the groups is here.

    The body may not talk to other ranks: one that fails in it says so only at its end.
    """
    problem: Exception | None = None
    try:
        yield
    except Exception as error:
        problem = error
    for group in groups:  # what is heard along one axis goes on along the next
        told: list[str | None] = [None] * group.size()
        own = None if problem is None else _words(problem)
        dist.all_gather_object(told, own, group=group)
        heard = [(rank, text) for rank, text in enumerate(told) if text is not None]
        if problem is None and heard:
            rank, text = heard[0]
            at = dist.get_process_group_ranks(group)[rank]
            problem = CheckpointError(f"{what} failed on rank {at}, so it stopped here: {text}")
    if problem is not None:
        raise problem


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
