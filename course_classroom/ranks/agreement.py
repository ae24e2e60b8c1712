"""Numbers and verbs that agree, for sentences about one rank or several, one thing or many.

Every message that lists ranks takes its words from here. From lesson 00 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SEVERAL = {"was": "were", "has": "have", "is": "are", "makes": "make", "holds": "hold"}


def listed(parts: Sequence[object]) -> str:
    """The parts in a sentence: "a", "a and b", "a, b and c"."""
    *first, last = map(str, parts)
    return f"{', '.join(first)} and {last}" if first else last


def ranks(numbers: Iterable[int]) -> str:
    """The ranks in a sentence: "rank 0", "ranks 0 and 2"."""
    numbers = list(numbers)
    return f"{'ranks' if numbers[1:] else 'rank'} {listed(numbers)}"


def verb(singular: str, count: int) -> str:
    """The verb, "was", for a subject of so many."""
    return singular if count == 1 else _SEVERAL[singular]


def said_of(numbers: Sequence[int], text: str) -> str:
    """The sentence about ranks, of a text about one of them that begins with its verb."""
    first, space, rest = text.partition(" ")
    several = _SEVERAL.get(first, first) if len(numbers) > 1 else first
    return f"{ranks(numbers)} {several}{space}{rest}"


def counted(count: int, thing: str) -> str:
    """The things with their number: "1 forward", "2 forwards"."""
    return f"{count} {thing}{'s' * (count != 1)}"


def named_holders(holders: Sequence[tuple[str, str]], most: int = 5) -> str:
    """The first of the pairs (variable, the cell that made it), and how many more there are."""
    named = ", ".join(f"`{name}` (made in {where})" for name, where in holders[:most])
    more = len(holders) - most
    return f"{named}, and {more} more" if more > 0 else named
