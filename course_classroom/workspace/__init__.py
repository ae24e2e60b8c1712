"""A learner's workspace: their own copies of lessons and exercises, which no update overwrites.

`course lab` makes and opens it, `course reset` renews what its owner names. Lesson 00 is the first
that is opened there.
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
