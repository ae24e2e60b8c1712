"""Data parallelism with sharded states, compared with its peers: `course bench zero`.

All use the same weights, data and fused AdamW: torch's DDP, ZeroRedundancyOptimizer and FSDP2, our
stages 0 to 3 (also with offload), and DeepSpeed's. Methods run in groups, with DDP in each group
for comparison, and a group is freed before the next is created. `peak_mb` includes held memory.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import MutableSet, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _each
import _progress
import _ranks
import _zero_ways
from _zero_ways import Task

from course_lib import ranks

WORKLOAD = {
    "ranks": 2,
    "hidden": 512,
    "heads": 8,
    "layers": 6,
    "sequence": 128,
    "batch": 4,  # of all ranks together
    "vocabulary": 8192,
    "dtype": "float32",
    "only": "",  # names separated by commas; empty means all
}
RUNS = 15
SECONDS = 75  # for the turns of one group; a slow machine makes fewer turns
GROUPS = (
    (
        *("ddp", "course_lib-0", "course_lib-1", "course_lib-2", "zero-redundancy-optimizer"),
        *("deepspeed-0", "deepspeed-1", "deepspeed-2"),
    ),
    (
        *("ddp", "course_lib-3-fast", "course_lib-3-lean", "fsdp2", "fsdp2-reshard"),
        *("deepspeed-3", "deepspeed-3-strict"),
    ),
    ("ddp", "course_lib-3-cpu", "course_lib-3-nvme", "deepspeed-3-cpu", "deepspeed-3-nvme"),
)
NAMES = tuple(dict.fromkeys(name for group in GROUPS for name in group))
# Our equivalent of each peer; `against` is its time per second of the peer's.
RIVALS = {
    "zero-redundancy-optimizer": "course_lib-1",
    "fsdp2": "course_lib-3-fast",
    "fsdp2-reshard": "course_lib-3-lean",
    "deepspeed-0": "course_lib-0",
    "deepspeed-1": "course_lib-1",
    "deepspeed-2": "course_lib-2",
    "deepspeed-3": "course_lib-3-fast",
    "deepspeed-3-strict": "course_lib-3-lean",
    "deepspeed-3-cpu": "course_lib-3-cpu",
    "deepspeed-3-nvme": "course_lib-3-nvme",
}
# Sums of the ranks' gradients in a different order, followed by AdamW, which makes a full step even
# from a tiny gradient. Over some tens of steps the losses drift apart by this much.
BOUNDS = {"float64": 1e-9, "float32": 1e-4}
as_text = _ranks.as_text


def measure(workload: dict | None = None, runs: int = RUNS, limit: float = _ranks.LIMIT) -> dict:
    workload = {**WORKLOAD, **(workload or {})}
    check(workload)
    return _each.document("zero", __file__, workload, runs, limit)


def check(workload: dict) -> None:
    _each.check_only(workload, "methods", NAMES)
    if workload["dtype"] not in BOUNDS:
        raise ValueError(f"dtype={workload['dtype']} is not one of {', '.join(BOUNDS)}")


def steps(
    me: ranks.Me, workload: dict, runs: int, without: Sequence[str], measured: Sequence[str]
) -> None:
    if me.rank == 0:
        (_progress.folder() / "files").mkdir()
    task = _zero_ways.task(me, workload, str(_progress.folder() / "files"))
    task.notes += _zero_ways.note(_each.chosen(workload, NAMES))
    for left_out in task.notes if me.rank == 0 else ():
        print(left_out, file=sys.stderr, flush=True)
    wanted = [name for name in NAMES if name in {"ddp", *_each.chosen(workload, NAMES)}]
    wanted = [name for name in wanted if _zero_ways.there(name)]
    first, *others = [name for name in wanted if name not in without] or [""]
    done = {*without, *measured}
    for names in GROUPS:
        here = [name for name in names if name in others and name not in done]
        if here:
            one_group(task, [first, *here], workload, runs, done)
    if first and not done & {first} and not others:  # only DDP was requested, or is available
        one_group(task, [first], workload, runs, done)


def one_group(
    task: Task, names: Sequence[str], workload: dict, runs: int, done: MutableSet[str]
) -> None:
    """Create these methods, measure them in turns, and free them. The first is the reference;
    `done` names methods that are already measured or omitted."""
    makers = {name: functools.partial(method, task, name) for name in names}
    with task.ending:
        methods = _progress.made(makers, done - {names[0]})
        bound = BOUNDS[workload["dtype"]]
        rows = _ranks.compare(task.me, methods, runs, bound=bound, main=RIVALS, limit=SECONDS)
        methods.clear()
    gc.collect()
    for row in rows:
        row["peak_mb"] = round(row["peak_mb"] + row["held_mb"], 6)
        row["settings"] = _zero_ways.SETTINGS[row["name"]]
    _progress.finished([row for row in rows if row["name"] not in done], task.notes)
    done |= {row["name"] for row in rows}


def method(task: Task, name: str) -> _ranks.Method:
    """Create a method after its first steps, and count the memory that it holds."""
    if task.me.rank == 0:
        print(f"making {name}", file=sys.stderr, flush=True)
    before = _zero_ways.bytes_alive()
    step = _zero_ways.build(task, name)
    made = [step() for _ in range(_zero_ways.WARM)]
    held = _zero_ways.bytes_alive() - before
    return _ranks.Method(step, made=made, held=held, bound=_zero_ways.ROUNDS.get(name))
