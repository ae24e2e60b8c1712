"""Measures this machine: as many processes as it has cores, one thread each, every probe in turn.

The median of several turns, so that one disturbed moment counts no more than another. Lesson 15.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp

from course_lib import ranks
from course_lib.estimate.time.machine import Machine
from course_lib.estimate.time.probes import machine, probes, timed
from course_lib.gpt import Config

TURNS = 9
LIMIT = 300.0  # seconds for all of it
MOST = 8  # processes: what more cores than that have in common with as many is enough


def calibrate(world: int = 0, *, like: Config | None = None, turns: int = TURNS) -> Machine:
    """This machine's processors as ranks of one thread each; `world` processes measure, 0 for one
    a core, with the widths of the model that it is to be `like`. Takes some seconds; other programs
    that run meanwhile are measured along."""
    if not hasattr(os, "fork"):
        raise ValueError("--calibrate needs Linux or macOS: ranks are processes here")
    cores = cores_here()
    world = world or max(2, min(MOST, cores))
    with tempfile.TemporaryDirectory(prefix="course-calibrate-") as folder:
        context = mp.get_context("spawn")
        answers = context.SimpleQueue()
        started = [
            context.Process(
                target=_rank, args=(rank, world, like, folder, turns, answers), daemon=True
            )
            for rank in range(world)
        ]
        try:
            for process in started:
                process.start()
            end = time.monotonic() + LIMIT
            for process in started:
                process.join(max(0.0, end - time.monotonic()))
            wrong = [process.exitcode for process in started if process.exitcode != 0]
            if wrong or answers.empty():
                raise ValueError(
                    f"a process that measures this machine ended with {wrong[:1] or 'nothing'}; "
                    "see above, or name a machine with --machine"
                )
            seconds = answers.get()
        finally:
            for process in started:
                if process.is_alive():
                    process.kill()
    return machine(seconds, world, cores, memory_here() // cores, like)


def cores_here() -> int:
    """That this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_here() -> int:
    """Bytes of the host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _rank(
    rank: int, world: int, like: Config | None, folder: str, turns: int, answers: mp.SimpleQueue
) -> None:
    # Before CUDA is asked for anything: this measures processors, and a GPU would be claimed.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    ranks.start(rank, world, rendezvous=Path(folder) / "rendezvous", timeout=120, backend="gloo")
    try:
        every = probes(world, like)
        found: dict[str, list[float]] = {probe.name: [] for probe in every}
        for turn in range(turns + 1):
            for probe in every:
                took = timed(probe)
                if turn:  # the first one loads libraries
                    found[probe.name].append(took)
        if rank == 0:
            answers.put({name: statistics.median(took) for name, took in found.items()})
    finally:
        ranks.stop()
