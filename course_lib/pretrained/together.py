"""A step that touches the disk succeeds on all ranks or raises a CheckpointError on all.

What goes wrong with a file goes wrong on one rank alone, and the next collective would hang. Used
around every step that reads or writes a checkpoint. Lesson 08.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from course_lib.collectives.agreement import all_or_none
from course_lib.collectives.call import Group
from course_lib.pretrained.header import CheckpointError


def together(groups: Sequence[Group], what: str) -> AbstractContextManager[None]:
    """Run the body; raise its error, or another rank's, once every rank of the groups is here."""
    return all_or_none(groups, what, error=CheckpointError)
