"""How long a learner waits: for ranks, for a cell, after a hang, after a rank has died.

Seconds on the machine at hand, medians of five; `course bench classroom` prints them. Times depend
on what else the machine does, so nothing in the tests asserts them.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable

import torch

from course_lib.classroom.cluster import Cluster

RUNS = 5
DEADLINE = 3.0
GREET = "x = torch.ones(1)\ndist.all_reduce(x)\nassert x.item() == world"
# A rank that no interrupt reaches, as inside native code that does not return: it has to be killed.
HANG = """
import signal, time
if rank == 1:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    time.sleep(1000)
dist.all_reduce(torch.ones(1))
"""
DEATH = "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)"


def measure() -> dict:
    figures = {"ready_2": ready(2), "ready_4": ready(4)}
    cluster = Cluster(2, idle_minutes=0)
    cluster.start()
    try:
        figures["cell"] = median(lambda: cell(cluster), 50)
        figures["recover_hang"] = median(lambda: recover(cluster, HANG, DEADLINE))
        figures["recover_death"] = median(lambda: recover(cluster, DEATH, 0.0))
    finally:
        cluster.stop()
    return {
        "name": "classroom",
        "workload": {"runs": RUNS, "deadline": DEADLINE, "worlds": [2, 4]},
        "machine": {
            "cpus": os.cpu_count(),
            "gpus": torch.cuda.device_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "figures": figures,
    }


def as_text(result: dict) -> str:
    meaning = {
        "ready_2": "two ranks started, first all-reduce done",
        "ready_4": "four ranks started, first all-reduce done",
        "cell": "a cell with nothing in it",
        "recover_hang": "past the deadline of a hang, until an all-reduce works",
        "recover_death": "from a killed rank until an all-reduce works",
    }
    return "\n".join(f"{v:8.3f} s  {meaning[k]}" for k, v in result["figures"].items())


def median(once: Callable[[], float], runs: int = RUNS) -> float:
    return round(statistics.median(once() for _ in range(runs)), 4)


def ready(world: int) -> float:
    def once() -> float:
        cluster = Cluster(world, idle_minutes=0)
        began = time.perf_counter()
        try:
            cluster.start()
            expect_good(cluster)
            return time.perf_counter() - began
        finally:
            cluster.stop()

    return median(once)


def cell(cluster: Cluster) -> float:
    began = time.perf_counter()
    cluster.run("pass")
    return time.perf_counter() - began


def recover(cluster: Cluster, fault: str, deadline: float) -> float:
    began = time.perf_counter()
    ended = cluster.run(fault, deadline=deadline or 30.0, checked=False)
    if not ended.failed:
        raise RuntimeError("the fault that should be measured did not happen")
    expect_good(cluster)
    return time.perf_counter() - began - deadline


def expect_good(cluster: Cluster) -> None:
    ended = cluster.run(GREET)
    if ended.failed:
        raise RuntimeError("the ranks did not come back")
