"""Then and now: each topic of the Transformers 4.37 pages, and what the installed releases say.

Every row names where this course runs the topic, or asks the installed release, or says why not.
Lesson 13.
"""

from course_lib.then_and_now.row import CHANGED, OUTSIDE, RUN, VERDICTS, Row
from course_lib.then_and_now.table import PAGES, RELEASES, Table, other_releases, table

__all__ = [
    "CHANGED",
    "OUTSIDE",
    "PAGES",
    "RELEASES",
    "RUN",
    "VERDICTS",
    "Row",
    "Table",
    "other_releases",
    "table",
]
