"""Wrong answers as parameters: an exercise's first four in a normal run, the others with `slow`.

What a learner writes first stands first in a table, with the answer that runs and does not shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

MOST = 4  # as many as an exercise has to bring at least


def likeliest_of(rows: Iterable[tuple], columns: Iterable[int]) -> list:
    """Rows (exercise, mistake, …) of several exercises, of which the test takes some columns."""
    columns, seen, made = list(columns), Counter(), []
    for row in rows:
        seen[row[0]] += 1
        marks = [] if seen[row[0]] <= MOST else [pytest.mark.slow]
        made.append(pytest.param(*(row[i] for i in columns), id=f"{row[0]}-{row[1]}", marks=marks))
    return made
