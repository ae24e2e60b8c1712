"""Keep what other tests left in the process out of the census: it is slow and not ours."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def a_census_of_our_own_tensors() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
