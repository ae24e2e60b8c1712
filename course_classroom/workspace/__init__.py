"""A learner's workspace: personal copies of lessons and exercises, which updates never overwrite.

`course lab` creates and opens it, and `course reset` renews the notebooks that its owner names.
Lesson 00 is its first notebook.
"""

from __future__ import annotations

from course_classroom.workspace.copying import open_up
from course_classroom.workspace.handed_out import items
from course_classroom.workspace.place import Refused, chosen, current
from course_classroom.workspace.renewing import Unknown, as_list, find, renew

__all__ = [
    "Refused",
    "Unknown",
    "as_list",
    "chosen",
    "current",
    "find",
    "items",
    "open_up",
    "renew",
]
