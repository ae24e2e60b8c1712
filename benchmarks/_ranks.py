"""Ranks for a benchmark: a process each, on one machine, and the methods timed in turn.

Methods are interleaved in one group of processes, so that a slow minute of the machine meets them
all; what counts is the median of the ratios pair by pair.
"""

from __future__ import annotations

import json
import os
import platform
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib import ranks
from course_lib.ledger import ledger
from course_lib.memory import peak

LIMIT = 600  # seconds for all of it


def run(world: int, file: str | Path, function: str, **arguments) -> list[dict]:
    """What `function(me, **arguments)` of a benchmark's file returned on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen(
                [sys.executable, __file__, str(file), function, str(rank), str(world), folder],
                env={
                    **os.environ,
                    "BENCH_ARGUMENTS": json.dumps(arguments),
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(world)
        ]
        until = time.monotonic() + LIMIT
        try:
            while any(one.poll() is None for one in started):
                if any(one.poll() for one in started):  # the others would wait for it
                    break
                if time.monotonic() > until:
                    raise RuntimeError(f"the benchmark had not ended after {LIMIT} s")
                time.sleep(0.05)
            failed = [str(rank) for rank, one in enumerate(started) if one.returncode]
            if failed:
                raise RuntimeError(f"rank {', '.join(failed)} of the benchmark failed; see above")
        finally:
            for one in started:
                one.kill()
                one.wait()
        return [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(world)]


def compare(me: ranks.Me, methods: Mapping[str, Callable[[], float]], runs: int) -> list[dict]:
    """Each method's figures on this rank: seconds, the ratio to the first, messages, memory.

    A method is one step; what it returns is its loss, which shows that all do the same work.
    """
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    losses: dict[str, list[float]] = {name: [] for name in methods}
    once = {name: _once(step) for name, step in methods.items()}
    order = list(methods)
    for turn in range(runs):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            _settle(me)
            began = time.perf_counter()
            loss = methods[name]()
            _settle(me)
            seconds[name].append(time.perf_counter() - began)
            losses[name].append(float(loss))
    first = seconds[order[0]]
    return [
        {
            "name": name,
            "ratio": round(statistics.median(a / b for a, b in zip(took, first, strict=True)), 4),
            "seconds": round(statistics.median(took), 6),
            **once[name],
            "losses": losses[name][:3],
        }
        for name, took in seconds.items()
    ]


def machine() -> dict:
    gpus = torch.cuda.device_count()
    return {
        "cpus": os.cpu_count(),
        "gpus": gpus,
        "gpu": torch.cuda.get_device_name(0) if gpus else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def as_text(result: dict) -> str:
    lines = [f"{result['name']}: {', '.join(f'{k} {v}' for k, v in result['workload'].items())}"]
    lines.append(f"{'method':24} {'ratio':>6} {'calls':>6} {'must MB':>8} {'moved MB':>9} peak MB")
    for one in result["methods"]:
        moved = "" if one["moved_mb"] is None else f"{one['moved_mb']:.2f}"
        lines.append(
            f"{one['name']:24} {one['ratio']:6.3f} {one['collectives']:6} {one['must_mb']:8.2f} "
            f"{moved:>9} {one['peak_mb']:.1f}"
        )
    return "\n".join(lines)


def _once(step: Callable[[], float]) -> dict:
    """Messages and memory of a step, after one that takes all first calls upon itself."""
    step()
    with ledger() as book:
        step()
    moved = book.bytes(column="moved")
    with peak() as top:
        step()
    return {
        "collectives": book.count(),
        "must_mb": round(book.bytes() / 1e6, 4),
        "moved_mb": None if moved is None else round(moved / 1e6, 4),
        "peak_mb": round(top.bytes / 1e6, 3),
        "held_mb": round(top.held_after / 1e6, 3),
    }


def _settle(me: ranks.Me) -> None:
    if me.device.type == "cuda":
        torch.cuda.synchronize(me.device)
    dist.barrier()


def _main(file: str, function: str, rank: str, world: str, folder: str) -> None:
    torch.set_num_threads(1)
    me = ranks.start(int(rank), int(world), rendezvous=Path(folder) / "rendezvous", timeout=120)
    try:
        arguments = json.loads(os.environ["BENCH_ARGUMENTS"])
        result = runpy.run_path(file)[function](me, **arguments)
        (Path(folder) / f"{rank}.json").write_text(json.dumps(result))
    finally:
        ranks.stop()


if __name__ == "__main__":
    _main(*sys.argv[1:])
