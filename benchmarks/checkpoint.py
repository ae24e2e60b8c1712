"""Checkpoints of a sharded training, compared with peers: `course bench checkpoint`.

The same model and AdamW, sharded over the ranks: our stage 2, torch's distributed.checkpoint of an
FSDP2 model, DeepSpeed's stage 2. A save ends when its bytes are on the disk, so a peer's page cache
is synced within the time. A load starts from weights that were set to zero.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _checkpoint_peers as peers
import _each
import _progress
import _ranks
import _zero_ways

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
    "only": "",  # course_lib, torch-dcp, deepspeed, separated by commas; empty means all
}
RUNS = 15
SECONDS = 120  # for the turns of one group; a slow machine makes fewer turns
WAYS = ("course_lib", "torch-dcp", "deepspeed")
VERBS = ("save", "load")
BOUND = 1e-5  # for sums of weights: one fused AdamW step from gradients in a different order


def measure(workload: dict | None = None, runs: int = RUNS, limit: float = _ranks.LIMIT) -> dict:
    workload = {**WORKLOAD, **(workload or {})}
    check(workload)
    return _each.document("checkpoint", __file__, workload, runs, limit)


def check(workload: dict) -> None:
    _each.check_only(workload, "ways", WAYS)


def steps(
    me: ranks.Me, workload: dict, runs: int, without: Sequence[str], measured: Sequence[str]
) -> None:
    """Measure both verbs of every way: all saves in turns, then all loads."""
    if me.rank == 0:
        (_progress.folder() / "files").mkdir()
    task = _zero_ways.task(me, workload, str(_progress.folder() / "files"))
    ways = ["course_lib", *(way for way in _each.chosen(workload, WAYS) if way != "course_lib")]
    if "deepspeed" in ways and not _zero_ways.there("deepspeed"):
        ways.remove("deepspeed")
        task.notes.append(_zero_ways.MISSING)
        if me.rank == 0:
            print(_zero_ways.MISSING, file=sys.stderr, flush=True)
    for verb in VERBS:
        names = {f"{way}-{verb}": way for way in ways}
        if verb == "load":  # like the peers, which check no checksum
            names["course_lib-load-unverified"] = "course_lib"
        done = {*without, *measured}
        first, *others = names
        if first in done and not set(others) - done:
            continue
        makers = {
            name: functools.partial(method, task, way, verb, name)
            for name, way in names.items()
            if name == first or name not in done
        }
        with task.ending:
            methods = _progress.made(makers, set(without))
            main = dict.fromkeys(names, first)
            rows = _ranks.compare(me, methods, runs, bound=BOUND, main=main, limit=SECONDS)
            for row in rows:
                row["disk_mb"] = round(peers.on_disk(task.folder / names[row["name"]]) / 1e6, 6)
            methods.clear()
        gc.collect()
        _progress.finished([row for row in rows if row["name"] not in done], task.notes)


def method(task: _zero_ways.Task, way: str, verb: str, name: str) -> _ranks.Method:
    """Create a way's training after one step, save it once, and return its verb."""
    if task.me.rank == 0:
        print(f"making {name}", file=sys.stderr, flush=True)
    before = _zero_ways.bytes_alive()
    made = peers.WAYS[way](task, task.folder / way)
    made.save()
    held = _zero_ways.bytes_alive() - before
    step = made.saved if verb == "save" else made.loaded
    if name.endswith("unverified"):
        step = functools.partial(made.loaded, verify=False)
    return _ranks.Method(step, held=held)


def as_text(result: dict) -> str:
    lines = [_ranks.as_text(result)]
    for row in result["methods"]:
        lines.append(f"{row['name']}: {row['disk_mb']:.1f} MB on disk")
    return "\n".join(lines)
