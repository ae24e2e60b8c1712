"""A launcher of ranks that are killed in a save: one process imports all, each pair is forked.

`python -m tests.course_lib.checkpoint.killed_ranks` reads lines of JSON, each [folder, step,
case], and prints for each the ranks' exit codes. Without a case the ranks write down the calls of
their save.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from course_lib.processes import Wanted
from course_lib.processes.here import start_here, without_threads

with without_threads():
    import torch
    import torch.distributed as dist

    from course_lib import checkpoint, ranks
    from tests.course_lib.checkpoint.faults import Calls, at, kill
    from tests.course_lib.checkpoint.parts import Layout, engine_of, losses

LAYOUT = Layout("2x1", 2)
WORLD, LIMIT = 2, 100  # ranks; seconds for a pair of them


def rank(number: int, rendezvous: str, top: str, step: int, case: list | None) -> None:
    """Go on from step 1, save after one step more as `step`, and be killed as the case says: the
    ranks that are, whose calls are counted, at which, and of which name."""
    torch.set_num_threads(1)
    me = ranks.start(number, WORLD, rendezvous=rendezvous, timeout=LIMIT / 3)
    with engine_of(me, LAYOUT, top) as (engine, mesh):
        checkpoint.load(f"{top}/step-000001", engine, mesh)
        losses(engine, mesh, 1, 1)
        pids: list = [None] * WORLD
        dist.all_gather_object(pids, os.getpid())
        calls, fault = Calls(top), None
        if case is not None and case[1] == number:
            victims, _, at_call, name = case
            fault = at(at_call, kill([pids[victim] for victim in victims]), only=name)
        calls.begin(fault)
        with contextlib.suppress(RuntimeError):  # the group's: a neighbour has gone
            checkpoint.save(top, step, engine, mesh)
        names = calls.end()
    if case is None:
        Path(f"{top}-{number}.json").write_text(json.dumps(names))
    sys.stderr.flush()
    os._exit(0)


def pair(rendezvous: str, top: str, step: int, case: list | None) -> list[int | None]:
    """The exit codes of two ranks; none of one that had to be ended."""
    processes = []
    for number in range(WORLD):
        arguments = [number, rendezvous, top, step, case]
        code = f"from tests.course_lib.checkpoint import killed_ranks as k; k.rank(*{arguments!r})"
        wanted = Wanted(
            "tests.course_lib.checkpoint.killed_ranks:rank",
            arguments,
            dict(os.environ),
            2,
            errors=2,
        )
        command = [sys.executable, "-c", code]
        # An optimizer's first step imports it, which takes longer than all the rest.
        processes.append(start_here(wanted, command, modules=("torch._dynamo",)))
    codes: list[int | None] = []
    for process in processes:
        try:
            codes.append(process.wait(LIMIT))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append(None)
    return codes


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, line in enumerate(sys.stdin):
            print(json.dumps(pair(f"{folder}/{number}", *json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
