"""Failures in a row, of the kinds that a learner can make, and one cluster is left of it."""

from __future__ import annotations

import os

import psutil
import pytest

from course_classroom.ranks import runs
from course_classroom.ranks.cluster import Cluster
from course_lib import processes as prepared
from tests.course_classroom.conftest import works

KINDS = {
    "raises": "if rank == 1:\n    raise ValueError('no')\ndist.barrier()",
    "waits alone": "if rank == 0:\n    dist.barrier()",
    "disagrees": "dist.all_reduce(torch.ones(2 + rank))",
    "killed": (
        "import os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.barrier()"
    ),
    "forks": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)\n"
        "raise KeyError(1)"
    ),
    "starts a program": (
        "import subprocess\n"
        "left = subprocess.Popen(['sleep', '1000'], start_new_session=True)\nraise KeyError(2)"
    ),
    "closes its output": (
        "import os, sys\nos.close(1)\nos.close(2)\nsys.stdout.close()\n"
        "raise KeyError(3)"
    ),
    "takes another group": (
        "dist.destroy_process_group()\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "raise KeyError(6)"
    ),
    "memory": "torch.empty(1 << 50)",
    "begins alone": "if rank == 0:\n    dist.all_reduce(torch.ones(2), async_op=True)",
}  # fmt: skip
RARE = {
    "kills its parent": (
        "import os, signal, time\nif rank == 1:\n    os.kill(os.getppid(), signal.SIGKILL)\n"
        "time.sleep(5)"
    ),
    "recursion": "def f():\n    return f()\nf()",
    "will not be interrupted": (
        "import time\nwhile rank == 0:\n    try:\n        time.sleep(1000)\n"
        "    except KeyboardInterrupt:\n        continue\n"
    ),
}  # fmt: skip


def _in_a_row(kinds: dict[str, str]) -> None:
    me = psutil.Process()
    before = {process.pid for process in me.children(recursive=True)}
    files = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    cluster = Cluster(2, idle_minutes=0)
    cluster.start()
    folder = cluster.folder
    try:
        for kind, code in kinds.items():
            ended = cluster.run(code, deadline=1.5 if "interrupted" in kind else 20.0)
            assert ended.failed, kind
            works(cluster)
        folder = cluster.folder
        living = [run for run in runs.all_runs() if run.owner == os.getpid()]
        assert folder in [run.folder for run in living]
    finally:
        cluster.stop()
    assert not folder.exists()
    expected = before | set(prepared.pids())
    left = [p for p in me.children(recursive=True) if p.pid not in expected]
    assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]
    sleepers = [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "1000"]
    ]
    assert not sleepers
    assert not files or len(os.listdir("/proc/self/fd")) <= files + 12


def test_failures_of_several_kinds_in_a_row_leave_one_live_cluster():
    _in_a_row(KINDS)


@pytest.mark.slow
@pytest.mark.skipif(bool(prepared.why_spawned()), reason="a rank's parent would be this process")
def test_rare_failures_in_a_row_leave_one_live_cluster_and_nothing_else():
    _in_a_row(RARE)
