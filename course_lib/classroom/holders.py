"""The variables that hold a group which did not survive a failure, in words.

A rank says it when one of them is used, the notebook when the groups are made anew. Lesson 00 makes
the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 5  # of the others, how many there are


def named_holders(holders: Sequence[tuple[str, str]]) -> str:
    """The first of the pairs (variable, the cell that made it), and how many more there are."""
    named = ", ".join(f"`{name}` (made in {where})" for name, where in holders[:NAMED])
    more = len(holders) - NAMED
    return f"{named}, and {more} more" if more > 0 else named
