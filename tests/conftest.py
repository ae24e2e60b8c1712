"""What every test may ask for: the warm ranks of tests/support/pool.py; leases of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from tests.support import devices
from tests.support.pool import Pool

# A test's ranks, and how many tensors its own process had put on a GPU when it began.
BEGAN: pytest.StashKey[tuple[Pool | None, int]] = pytest.StashKey()
# The files that took longest, first: workers then end together, and none alone with one.
LONGEST = (
    "course_lib/train/test_program", "course_classroom/ranks/test_cluster",
    "course_lib/zero/offload/test_same", "house/test_bootstrap", "course_lib/zero/test_stages",
    "notebooks/browser/test_in_the_browser", "course_classroom/grading/test_cli_grade",
    "house/test_benchmarks_peers", "house/test_benchmarks_zero", "course_lib/zero/test_stage3",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: i for i, name in enumerate(LONGEST)}

    def order(item: pytest.Item) -> int:
        path = item.path.with_suffix("").as_posix()
        return place.get(path.rpartition("/tests/")[2], len(place))

    items.sort(key=order)  # stable: the others stay in pytest's own order


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


@pytest.fixture(autouse=True)
def _on_the_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a machine with a GPU, run a test where it says: see tests/support/devices.py."""
    if not torch.cuda.is_available():
        yield
        return
    item, place = request.node, devices.where(request.node)
    ranks = request.getfixturevalue("pool") if "pool" in request.fixturenames else None
    if ranks is not None:
        ranks.hidden, ranks.made = devices.HIDDEN if place == "cpu" else {}, 0
    item.stash[BEGAN] = ranks, devices.made()
    here = ranks is None and place == "device" and devices.of_the_devices(item)
    with pytest.MonkeyPatch.context() as patch:
        if ranks is None and place == "cpu":  # the test's own process is to see no GPU either
            patch.setattr(torch.cuda, "is_available", lambda: False)
        with devices.default(torch.device("cuda" if here else "cpu")):
            yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    result = yield
    if BEGAN in item.stash and devices.where(item) == "device" and devices.of_the_devices(item):
        ranks, began = item.stash[BEGAN]
        made = devices.made() - began + (0 if ranks is None else ranks.made)
        assert made, "no tensor was made on the GPU: make them on me.device, or mark the test `cpu`"
    return result


@pytest.fixture(scope="session")
def desk() -> Iterator:
    """A learner's desk. Its judge's ranks stay warm from one exercise's tests to the next's."""
    from course_classroom.judge.desk import Desk

    made = Desk()
    yield made
    made.judge.stop()


@pytest.fixture
def alone():
    """A desk for what needs no ranks, as numbers do: its judge is never started."""
    from course_classroom.judge.desk import Desk

    return Desk()
