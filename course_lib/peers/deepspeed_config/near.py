"""The valid name nearest to a misspelt one, with wrong letters or words in a different order.

Lesson 13.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher


def edits(a: str, b: str, most: int) -> int:
    """Count the letters to insert, remove, replace or swap, up to `most` + 1."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before, row = [], list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        two_before, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, two_before[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]


def nearest(
    name: str,
    names: Iterable[str],
    *,
    wide: bool = True,
    slack: int = 0,
    doubt: Callable[[str], float] = lambda right: 0.0,
) -> str | None:
    """Find the valid name that was probably meant, or None. `wide` compares words as well, and
    `slack` allows more wrong letters. `doubt` is added to a name's distance, for example if the
    name does not accept the value."""
    plain, scores = _plain(name), {}
    for right in names:
        other = _plain(right)
        longer = max(len(plain), len(other))
        room = 1 if longer <= 3 else 2 if longer <= 7 else 3
        room += slack if longer >= 5 else 0
        distance = edits(plain, other, room)
        if distance <= room and distance < longer:
            score = distance - SequenceMatcher(None, plain, other).ratio()
            score += 0.3 * (plain[:1] != other[:1]) - 0.3 * (sorted(plain) == sorted(other))
        elif wide and (likeness := _likeness(plain, other)) >= 0.7:
            score = (2.5 if likeness >= 1 else 10) - likeness
        else:
            continue
        scores[right] = score + doubt(right)
    return min(scores, key=scores.get, default=None)


def alike(name: str, right: str) -> bool:
    """Return True if `name` has several words, which all occur in `right`."""
    mine, theirs = _plain(name).split("_"), _plain(right).split("_")
    return len(mine) > 1 and set(mine) <= set(theirs)


def _plain(name: str) -> str:
    """Normalise case, hyphens and blanks; a capital letter inside a name starts a new word."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return spaced.lower().replace("-", "_").replace(" ", "_")


def _likeness(a: str, b: str) -> float:
    """Compare two names by their words, in any order; words may be abbreviated or lack a letter.
    The score is higher if all words of the wrong name occur in the right one."""
    mine = [word for word in a.split("_") if word]
    theirs = [word for word in b.split("_") if word]
    matched = sum(any(_same_word(x, y) for y in theirs) for x in mine)
    if not matched or (len(mine) == 1 and (len(mine[0]) < 3 or len(theirs) > 2)):
        return 0.0
    whole = 0.2 if matched == len(mine) else 0.0
    return 2 * matched / (len(mine) + len(theirs)) + whole


def _same_word(x: str, y: str) -> bool:
    short, long = sorted((x, y), key=len)
    return (len(short) >= 3 and long.startswith(short)) or edits(x, y, 1) <= (len(short) > 3)
