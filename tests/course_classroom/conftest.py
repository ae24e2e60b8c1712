"""Ranks as a notebook has them, shared by the tests of a module and repaired between them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from course_classroom.doctor.finding import Finding
from course_classroom.notebook.magic import explain
from course_classroom.ranks.cluster import Cluster, Ended


@pytest.fixture(scope="package", autouse=True)
def _own_runtime(tmp_path_factory) -> Iterator[None]:
    # A folder of our own, so that a learner's running ranks are not touched.
    patch = pytest.MonkeyPatch()
    patch.setenv("COURSE_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    patch.setenv("COURSE_LEASES", str(tmp_path_factory.mktemp("leases")))
    for name in ("WORLD_SIZE", "COURSE_LEARNERS", "COURSE_SHARE_GPUS"):
        patch.delenv(name, raising=False)
    yield
    patch.undo()


@pytest.fixture(scope="package")
def clusters(_own_runtime) -> Iterator[Callable[[int], Cluster]]:
    made: dict[int, Cluster] = {}

    def get(world: int) -> Cluster:
        if world not in made:
            made[world] = Cluster(world, idle_minutes=0)
        if not made[world].running:
            made[world].start()
        return made[world]

    yield get
    for cluster in made.values():
        cluster.stop()


@pytest.fixture
def two(clusters) -> Cluster:
    return clusters(2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def only(found: list[Finding]) -> Finding:
    """The one line of a report; what is not well has a remedy."""
    assert len(found) == 1, found
    assert found[0].level == "ok" or found[0].remedy
    return found[0]


def told(ended: Ended) -> str:
    """What the learner reads."""
    assert ended.failed
    return explain(ended, 30.0)


def freed(ended: Ended) -> str:
    """What the learner reads where the referee ended the waits, and no time limit had to: neither
    the cell's deadline nor the group's timeout. No clock is asked, so a busy machine is no fault.
    """
    text = told(ended)
    late = [fact for fact in ended.scene.facts if fact.kind in ("transport", "interrupted")]
    assert not ended.timed_out and late == [], text
    return text


def works(cluster: Cluster) -> None:
    """The ranks are all there and their group carries a sum."""
    ended = cluster.run("works = torch.full((3,), rank + 1.0)\ndist.all_reduce(works)")
    assert not ended.failed, explain(ended, 30.0)
    total = sum(range(1, cluster.world + 1))
    assert [t.tolist() for t in cluster.pull("works")] == [[total] * 3] * cluster.world


def printed(ended: Ended) -> list[str]:
    """What each rank wrote to standard output."""
    assert not ended.failed, explain(ended, 30.0)
    return [
        "".join(o["text"] for o in outcome.outputs if o["output_type"] == "stream")
        for outcome in ended.outcomes
    ]


def living(pids: Iterable[int | str], seconds: float = 5.0) -> list[int]:
    """Of these processes those that have not ended after so many seconds."""
    left, limit = [int(pid) for pid in pids], time.monotonic() + seconds
    while left and time.monotonic() < limit:
        time.sleep(0.02)
        left = [pid for pid in left if _lives(pid)]
    return left


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
