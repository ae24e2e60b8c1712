"""Grammatical agreement of numbers and verbs, for sentences about one or several ranks.

Every message that lists ranks uses this module. From lesson 00 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SEVERAL = {"was": "were", "has": "have", "is": "are", "makes": "make", "holds": "hold"}


def listed(parts: Sequence[object]) -> str:
    """Join parts for a sentence: "a", "a and b", "a, b and c"."""
    *first, last = map(str, parts)
    return f"{', '.join(first)} and {last}" if first else last


def ranks(numbers: Iterable[int]) -> str:
    """Name ranks in a sentence: "rank 0", "ranks 0 and 2"."""
    numbers = list(numbers)
    return f"{'ranks' if numbers[1:] else 'rank'} {listed(numbers)}"


def verb(singular: str, count: int) -> str:
    """Return a verb such as "was" in the form that agrees with `count` ranks."""
    return singular if count == 1 else _SEVERAL[singular]


def said_of(numbers: Sequence[int], text: str) -> str:
    """Build a sentence about ranks from a text about one rank; the text begins with its verb."""
    first, space, rest = text.partition(" ")
    several = _SEVERAL.get(first, first) if len(numbers) > 1 else first
    return f"{ranks(numbers)} {several}{space}{rest}"


def counted(count: int, thing: str) -> str:
    """Return a noun with its number, such as "1 forward" or "2 forwards"."""
    return f"{count} {thing}{'s' * (count != 1)}"


def named_holders(holders: Sequence[tuple[str, str]], most: int = 5) -> str:
    """Name the first pairs (variable, the cell that defined it), and count the others."""
    named = ", ".join(f"`{name}` (made in {where})" for name, where in holders[:most])
    more = len(holders) - most
    return f"{named}, and {more} more" if more > 0 else named
