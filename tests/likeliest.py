"""Wrong answers as parameters: a table's first ones in a normal run, the others with `slow`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

MOST = 4  # as many as an exercise has to bring at least


def likeliest(mistakes: Iterable[str]) -> list:
    """Every mistake of one exercise, for `parametrize`."""
    return likeliest_of([("", mistake) for mistake in mistakes], [1])


def likeliest_of(rows: Iterable[tuple], columns: Iterable[int]) -> list:
    """The same for several exercises' mistakes: rows (exercise, mistake, …), of which the test
    takes some columns."""
    seen: Counter[str] = Counter()
    made = []
    for row in rows:
        seen[row[0]] += 1
        late = [pytest.mark.slow] if seen[row[0]] > MOST else []
        name = f"{row[0]}-{row[1]}".strip("-")
        made.append(pytest.param(*(row[i] for i in columns), id=name, marks=late))
    return made
