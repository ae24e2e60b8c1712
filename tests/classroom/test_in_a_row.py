"""Sixty failures in a row, of every kind that a learner can make, and one cluster is left of it."""

from __future__ import annotations

import os
import random

import psutil
import pytest

from course_lib import prepared
from course_lib.classroom import runs
from course_lib.classroom.cluster import Cluster
from tests.classroom.conftest import works

KINDS = {
    "raises": "if rank == 1:\n    raise ValueError('no')\ndist.barrier()",
    "raises everywhere": "1 / 0",
    "syntax": "def :",
    "hangs": "import time\ntime.sleep(1000)",
    "loops": "while True:\n    pass",
    "waits alone": "if rank == 0:\n    dist.barrier()",
    "disagrees": "dist.all_reduce(torch.ones(2 + rank))",
    "killed": (
        "import os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.barrier()"
    ),
    "segfault": "import ctypes\nif rank == 0:\n    ctypes.string_at(0)",
    "ends itself": "import os\nos._exit(3)",
    "exits": "import sys\nsys.exit(3)",
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
    "prints 50 MB": "for _ in range(50):\n    print('x' * 10**6)\nraise KeyError(4)",
    "a long error": "raise ValueError('v' * 10**7)",
    "destroys the groups": "dist.destroy_process_group()\nraise KeyError(5)",
    "takes another group": (
        "dist.destroy_process_group()\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "raise KeyError(6)"
    ),
    "memory": "torch.empty(1 << 50)",
    "begins alone": "if rank == 0:\n    dist.all_reduce(torch.ones(2), async_op=True)",
    "swallows the interrupt": (
        "import time\nwhile True:\n    try:\n        time.sleep(1000)\n"
        "    except KeyboardInterrupt:\n        break"
    ),
    "will not be interrupted": (
        "import time\nwhile rank == 0:\n    try:\n        time.sleep(1000)\n"
        "    except KeyboardInterrupt:\n        continue\n"
    ),
    "interrupts itself": "raise KeyboardInterrupt",
    "recursion": "def f():\n    return f()\nf()",
    "kills its parent": (
        "import os, signal, time\nif rank == 1:\n    os.kill(os.getppid(), signal.SIGKILL)\n"
        "time.sleep(5)"
    ),
}  # fmt: skip
SLOW = ("hangs", "loops", "swallows the interrupt", "will not be interrupted")
QUICK = ("raises", "waits alone", "disagrees", "killed", "forks", "starts a program")
QUICK += ("closes its output", "takes another group", "memory", "begins alone")


def _fails(cluster: Cluster, kind: str) -> None:
    ended = cluster.run(KINDS[kind], deadline=1.5 if kind in SLOW else 20.0)
    assert ended.failed, kind


def _in_a_row(kinds: list[str]) -> None:
    me = psutil.Process()
    before = {process.pid for process in me.children(recursive=True)}
    files = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    cluster = Cluster(2, idle_minutes=0)
    cluster.start()
    folder = cluster.folder
    try:
        for kind in kinds:
            _fails(cluster, kind)
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
    _in_a_row([*QUICK])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(prepared.why_spawned()), reason="a rank's parent would be this process")
def test_sixty_failures_in_a_row_leave_one_live_cluster_and_nothing_else():
    draw = random.Random(14)
    _in_a_row([*KINDS, *draw.choices(list(KINDS), k=60 - len(KINDS))])
