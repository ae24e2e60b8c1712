"""Wrong answers as parameters: some of a table in a normal run, the others with `slow`.

A normal run takes an exercise's first four, or those that a table's test names as likelier: what a
learner writes first, and where there is one, the answer that runs and does not shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

MOST = 4  # as many as an exercise has to bring at least


def likeliest(mistakes: Iterable[str], first: Sequence[str] = ()) -> list:
    """Every mistake of one exercise, for `parametrize`."""
    return likeliest_of([("", mistake) for mistake in mistakes], [1], {"": first})


def likeliest_of(
    rows: Iterable[tuple], columns: Iterable[int], first: dict[str, Sequence[str]] | None = None
) -> list:
    """The same for several exercises' mistakes: rows (exercise, mistake, …), of which the test
    takes some columns; `first` has the likelier ones of an exercise."""
    rows, columns, seen, made = list(rows), list(columns), Counter(), []
    chosen = {exercise: set(names) for exercise, names in (first or {}).items() if names}
    for exercise, names in chosen.items():
        there = {row[1] for row in rows if row[0] == exercise}
        if names - there or len(names) != MOST:
            raise ValueError(f"{exercise}: {MOST} of its mistakes, not {sorted(names - there)}")
    for row in rows:
        seen[row[0]] += 1
        normal = row[1] in chosen[row[0]] if row[0] in chosen else seen[row[0]] <= MOST
        name = f"{row[0]}-{row[1]}".strip("-")
        marks = [] if normal else [pytest.mark.slow]
        made.append(pytest.param(*(row[i] for i in columns), id=name, marks=marks))
    return made
