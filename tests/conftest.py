"""What every test may ask for: `pool`, the warm ranks of tests/pool.py; and leases of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.pool import Pool


@pytest.fixture(scope="session", autouse=True)
def _own_leases(tmp_path_factory) -> Iterator[None]:
    """Leases among this session's tests alone: no learner on this machine is in the way."""
    patch = pytest.MonkeyPatch()
    patch.setenv("COURSE_LEASES", str(tmp_path_factory.mktemp("leases") / "node"))
    patch.delenv("COURSE_LEARNERS", raising=False)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Ranks for the whole session: `pool.run(world, fn, *args)`."""
    made = Pool(float(os.environ.get("POOL_TIMEOUT", "30")))
    yield made
    made.close()
