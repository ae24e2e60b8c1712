"""What every test may ask for: `pool`, the warm ranks of tests/pool.py."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Ranks for the whole session: `pool.run(world, fn, *args)`."""
    made = Pool(float(os.environ.get("POOL_TIMEOUT", "30")))
    yield made
    made.close()
