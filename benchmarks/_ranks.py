"""Ranks for a benchmark: a process each, on one machine, and the methods timed in turn.

Methods are interleaved in one group of processes, so that a slow minute of the machine meets them
all; what counts is the median of the ratios pair by pair. Where two methods' losses differ they do
not do the same work, and no figure of theirs is told.
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
    """One step of a method, which gives its loss; what it holds between two steps.

    `alone`: rank 0 makes the step, and the other ranks sleep meanwhile. `threads` for each rank.
    `made`: the losses of steps made already. `held`: bytes, where they were counted beforehand.
    `bound`: a wider one than the others', for a method that rounds.
    """

    step: Callable[[], float]
    holds: Sequence[object] = ()
    threads: int = 1
    alone: bool = False
    made: Sequence[float] = ()
    held: int | None = None
    bound: float | None = None


class OtherWork(RuntimeError):
    """A method whose losses are not those of the first."""

    def __init__(self, why: str, method: str):
        super().__init__(why)
        self.method = method


def check_even(workload: Mapping, *names: str) -> None:
    """Refuse what the peers cannot cut; ours could."""
    uneven = [f"{name}={workload[name]}" for name in names if workload[name] % workload["ranks"]]
    if uneven:
        raise ValueError(
            f"{', '.join(uneven)} cannot be cut evenly over ranks={workload['ranks']}, which "
            "Megatron-core needs; choose multiples of it"
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
    """Each method's figures on this rank: seconds, the ratio to the first, messages, memory.

    Step for step all losses have to agree within `bound`, relative. With `main`, the name of a
    method (or of one for each), `against` says how long that one takes for each second of this one.
    On a slow machine there are fewer turns than `runs`: none begins after `limit` seconds, but five
    are made.
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
        # Not one order over and over: a method would always follow the same other one.
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
    """The median of the ratios of steps that were made in the same turn."""
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
    """Messages and memory of a step, after one that takes all first calls upon itself."""
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
    """Seconds from a moment when all ranks are ready to one when all have made their step."""
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
    """Whether rank 0's clock is past that moment; all ranks have to go on or to stop."""
    late = torch.tensor([float(time.monotonic() > until)])
    dist.broadcast(late, 0)
    return bool(late)


def _settle(me: ranks.Me) -> None:
    """Return when every rank has come this far; gloo's wait sleeps, where NCCL's would spin."""
    if me.device.type == "cuda":
        torch.cuda.synchronize(me.device)
    dist.all_reduce(torch.zeros(1))


def _same(
    losses: Mapping[str, Sequence[float]],
    bound: float,
    me: ranks.Me,
    wider: Mapping[str, float] | None = None,
) -> None:
    """Refuse to compare methods that do not do the same work."""
    if me.rank:  # what is done alone has no losses here
        return
    (first, expected), *others = losses.items()
    for name, found in others:
        most = (wider or {}).get(name, bound)
        for step, (a, b) in enumerate(zip(found, expected, strict=True)):
            if not abs(a - b) <= most * abs(b):
                raise OtherWork(
                    f"step {step}: the loss of {name} is {a!r}, that of {first} {b!r}, further "
                    f"apart than {most:g} of it; they do not do the same work, and a ratio of "
                    "their times would say nothing. Were the weights or the data not the same?",
                    name,
                )
