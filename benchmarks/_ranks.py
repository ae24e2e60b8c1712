"""Ranks for a benchmark: one process each, on one machine, with the methods timed in turn.

Methods are interleaved in one group of processes, so that a slow minute of the machine affects all
of them. The result is the median of the paired ratios. If two methods' losses differ, they do
different work, so their figures are not reported.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _progress
import torch
import torch.distributed as dist
from _start import LIMIT
from _start import run as run

from course_lib import ranks
from course_lib.ledger import ledger
from course_lib.memory import held, peak

LEAST_RUNS = 5


@dataclass(frozen=True)
class Method:
    """One step of a method, which returns its loss, and the objects that it holds between steps.

    With `alone`, rank 0 makes the step while the other ranks sleep. `threads` is per rank. `made`
    holds the losses of earlier steps, and `held` the bytes if they were counted before. `bound` is
    a wider tolerance for a method that rounds.
    """

    step: Callable[[], float]
    holds: Sequence[object] = ()
    threads: int = 1
    alone: bool = False
    made: Sequence[float] = ()
    held: int | None = None
    bound: float | None = None


class OtherWork(RuntimeError):
    """The error for a method whose losses differ from the first method's."""

    def __init__(self, why: str, method: str):
        super().__init__(why)
        self.method = method


def check_even(workload: Mapping, *names: str) -> None:
    """Refuse sizes that the peers cannot shard evenly, although ours can."""
    uneven = [f"{name}={workload[name]}" for name in names if workload[name] % workload["ranks"]]
    if uneven:
        raise ValueError(
            f"{', '.join(uneven)} cannot be sharded evenly over ranks={workload['ranks']}, but "
            "Megatron-core needs this; choose multiples"
        )


def compare(
    me: ranks.Me,
    methods: Mapping[str, Method],
    runs: int,
    *,
    bound: float = 0.0,
    main: str | Mapping[str, str] | None = None,
    limit: float = LIMIT,
) -> list[dict]:
    """Measure each method on this rank: seconds, ratio to the first method, messages, memory.

    At each step all losses must agree within the relative `bound`. With `main` (one method, or one
    per method), `against` is that method's time per second of this method. A slow machine makes
    fewer turns than `runs`, because no turn starts after `limit` seconds, but at least five are
    made.
    """
    began = time.monotonic()
    wider = {name: one.bound for name, one in methods.items() if one.bound is not None}
    rival = dict.fromkeys(methods, main) if isinstance(main, str) else dict(main or {})
    losses: dict[str, list[float]] = {name: [*one.made] for name, one in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    once = {}
    for name, method in methods.items():
        with _progress.doing(name):
            once[name] = _once(me, method, losses[name])
    _same(losses, bound, me, wider)  # before the long part
    order = list(methods)
    for turn in range(runs):
        if turn >= LEAST_RUNS and _late(began + limit):
            break
        # In changing order; otherwise a method would always follow the same other method.
        for name in random.Random(turn).sample(order, len(order)):
            with _progress.doing(name):
                seconds[name].append(_timed(me, methods[name], losses[name]))
    _same(losses, bound, me, wider)
    result = []
    for name, took in seconds.items():
        figures = {
            "name": name,
            "ratio": paired(took, seconds[order[0]]),
            "seconds": round(statistics.median(took), 6),
            **once[name],
            "losses": losses[name][:3],
            "runs": len(took),
        }
        if rival.get(name) in seconds:
            figures["against"] = paired(seconds[rival[name]], took)
            if not isinstance(main, str):
                figures["rival"] = rival[name]
        result.append(figures)
    return result


def paired(took: Sequence[float], reference: Sequence[float]) -> float:
    """Return the median of the ratios of steps in the same turn."""
    return round(statistics.median(a / b for a, b in zip(took, reference, strict=True)), 4)


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
    width = max([20, *(len(one["name"]) for one in result["methods"])])
    lines.append(
        f"{'method':{width}} {'ratio':>7} {'seconds':>8} {'calls':>6} {'must MB':>8} "
        f"{'moved MB':>9} {'peak MB':>8} {'held MB':>8}  loss"
    )
    for one in result["methods"]:
        moved = "" if one["moved_mb"] is None else f"{one['moved_mb']:.2f}"
        lines.append(
            f"{one['name']:{width}} {one['ratio']:7.3f} {one['seconds']:8.4f} "
            f"{one['collectives']:6} {one['must_mb']:8.2f} {moved:>9} {one['peak_mb']:8.1f} "
            f"{one['held_mb']:8.1f}  {one['losses'][0]:.6f}"
        )
    told: dict[str, list[str]] = {}
    for one in result["methods"]:
        ours = one.get("rival", "course_lib")
        if "against" in one and one["name"] != ours:
            told.setdefault(ours, []).append(f"{one['against']:.3f} × {one['name']}")
    lines += [f"{ours} takes {', '.join(them)} (paired medians)" for ours, them in told.items()]
    lines += [f"missing: {one['name']}: {one['why']}" for one in result.get("missing", [])]
    lines += result.get("notes", [])
    return "\n".join(lines)


def _once(me: ranks.Me, method: Method, losses: list[float]) -> dict:
    """Measure messages and memory of a step, after a first step that absorbs all first calls."""
    _timed(me, method, losses)
    with ledger() as book:
        _timed(me, method, losses, settled=False)
    moved = book.bytes(column="moved")
    _settle(me)
    with peak() as top:
        _timed(me, method, losses, settled=False)
    _settle(me)
    bytes_held = held(*method.holds).total if method.held is None else method.held
    return {
        "collectives": book.count(),
        "must_mb": round(book.bytes() / 1e6, 6),
        "moved_mb": None if moved is None else round(moved / 1e6, 6),
        "peak_mb": round(top.bytes / 1e6, 6),
        "held_mb": round(bytes_held / 1e6, 6),
    }


def _timed(me: ranks.Me, method: Method, losses: list[float], settled: bool = True) -> float:
    """Return the seconds from when all ranks are ready until all have made their step."""
    takes_part = me.rank == 0 or not method.alone
    if takes_part and method.threads != torch.get_num_threads():
        torch.set_num_threads(method.threads)
    if settled:
        _settle(me)
    began = time.perf_counter()
    if takes_part:
        losses.append(float(method.step()))
    if settled:
        _settle(me)
    took = time.perf_counter() - began
    torch.set_num_threads(1)
    return took


def _late(until: float) -> bool:
    """Return True on all ranks if rank 0's clock is past that moment, so they decide alike."""
    late = torch.tensor([float(time.monotonic() > until)])
    dist.broadcast(late, 0)
    return bool(late)


def _settle(me: ranks.Me) -> None:
    """Wait until every rank arrives here; gloo's wait sleeps, but NCCL's would spin."""
    if me.device.type == "cuda":
        torch.cuda.synchronize(me.device)
    dist.all_reduce(torch.zeros(1))


def _same(
    losses: Mapping[str, Sequence[float]],
    bound: float,
    me: ranks.Me,
    wider: Mapping[str, float] | None = None,
) -> None:
    """Refuse to compare methods that do different work."""
    if me.rank:  # steps of rank 0 only have no losses here
        return
    (first, expected), *others = losses.items()
    for name, found in others:
        most = (wider or {}).get(name, bound)
        for step, (a, b) in enumerate(zip(found, expected, strict=True)):
            if not abs(a - b) <= most * abs(b):
                raise OtherWork(
                    f"step {step}: the loss of {name} is {a!r} but that of {first} is {b!r}, which "
                    f"differ by more than {most:g}. The methods do different work, so the ratio of "
                    "their times is meaningless. Check that weights and data are equal",
                    name,
                )
