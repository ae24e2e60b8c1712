"""A learner's waiting times: for ranks, for a cell, after a hang or a death, for a check.

Seconds on this machine (medians of nine) and a notebook's memory; `course bench classroom` prints
them. Times depend on the machine's other work, so no test asserts them.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _notebook

from course_classroom.ranks.cluster import Cluster
from course_classroom.ranks.wire import KERNEL
from course_lib import processes as prepared

RUNS = 9  # measurements per figure; their median is used
DEADLINE = 3.0
GREET = "x = torch.ones(1)\ndist.all_reduce(x)\nassert x.item() == world"
# A rank that ignores interrupts, as in native code that does not return, so it must be killed.
HANG = """
import signal, time
if rank == 1:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    time.sleep(1000)
dist.all_reduce(torch.ones(1))
"""
DEATH = "import os, signal\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)"


def measure(runs: int = RUNS) -> dict:
    figures = {"ready_2": ready(2, runs), "ready_4": ready(4, runs)}
    figures |= {"warm_2": warm(2, runs), "warm_4": warm(4, runs)}
    cluster = Cluster(2, idle_minutes=0)
    cluster.start()
    try:
        figures["cell"] = median(lambda: cell(cluster), 50)
        figures["recover_hang"] = median(lambda: recover(cluster, HANG, DEADLINE), runs)
        figures["recover_death"] = median(lambda: recover(cluster, DEATH, 0.0), runs)
    finally:
        cluster.stop()
    figures |= _notebook.learner(runs)
    return {
        "name": "classroom",
        "workload": {"runs": runs, "deadline": DEADLINE, "worlds": [2, 4]},
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
        "warm_2": "two ranks started from a running prepared process",
        "warm_4": "four ranks started from a running prepared process",
        "cell": "an empty cell",
        "recover_hang": "from a hang's deadline until an all-reduce works",
        "recover_death": "from a killed rank until an all-reduce works",
        "first_check": "a notebook's first check, including its judge's ranks",
        "next_check": "the same check again",
    }
    figures = result["figures"]
    lines = [f"{figures[name]:8.3f} s  {text}" for name, text in meaning.items()]
    parts = ", ".join(f"{name} {mb:.0f}" for name, mb in figures["learner_parts_mb"].items())
    return "\n".join(
        [*lines, f"{figures['learner_mb']:8.0f} MB a notebook with two ranks and a check: {parts}"]
    )


def median(once: Callable[[], float], runs: int) -> float:
    return round(statistics.median(once() for _ in range(runs)), 4)


def ready(world: int, runs: int) -> float:
    """Measure a start from nothing, including the imports that later starts share."""

    def once() -> float:
        prepared.close()
        return started(world)

    return median(once, runs)


def warm(world: int, runs: int) -> float:
    prepared.ready(KERNEL)
    return median(lambda: started(world), runs)


def started(world: int) -> float:
    cluster = Cluster(world, idle_minutes=0)
    began = time.perf_counter()
    try:
        cluster.start()
        expect_good(cluster)
        return time.perf_counter() - began
    finally:
        cluster.stop()


def cell(cluster: Cluster) -> float:
    began = time.perf_counter()
    cluster.run("pass")
    return time.perf_counter() - began


def recover(cluster: Cluster, fault: str, deadline: float) -> float:
    began = time.perf_counter()
    ended = cluster.run(fault, deadline=deadline or 30.0, checked=False)
    if not ended.failed:
        raise RuntimeError("the fault to be measured did not happen")
    expect_good(cluster)
    return time.perf_counter() - began - deadline


def expect_good(cluster: Cluster) -> None:
    ended = cluster.run(GREET)
    if ended.failed:
        raise RuntimeError("the ranks did not come back")
