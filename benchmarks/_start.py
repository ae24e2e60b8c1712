"""Processes for a benchmark's ranks, on one machine: started, watched and ended.

Whoever is late, raises or dies is named by the method that was in its turn. This file is also what
each rank runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _progress
import torch

from course_lib import ranks
from course_lib.train.stop import end_with

LIMIT = 600  # seconds for a method, all its turns together, unless --limit says otherwise
BETWEEN = 300  # and for what belongs to none, such as the start
# For all methods alike. Large pages: with small ones much of a step is the kernel clearing them.
# One hardware queue: on a GPU, what is launched first begins first, a sum before the next product.
TUNING = {"THP_MEM_ALLOC_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


class Fault(RuntimeError):
    """Why ranks did not come to the end, and the method in whose turn that was, if in one's."""

    def __init__(self, why: str, method: str | None = None):
        super().__init__(why)
        self.method = method


def run(
    world: int, file: str | Path, function: str, *, limit: float = LIMIT, **arguments
) -> list[dict]:
    """What `function(me, **arguments)` of a benchmark's file returned on each rank."""
    with tempfile.TemporaryDirectory(prefix="course-bench-") as folder:
        try:
            return attempt(world, file, function, folder, limit, arguments)
        except Fault as fault:
            of = "" if fault.method is None else f"{fault.method}: "
            raise RuntimeError(f"a rank of the benchmark failed; see above. {of}{fault}") from fault


def attempt(
    world: int, file: str | Path, function: str, folder: str, limit: float, arguments: Mapping
) -> list[dict]:
    """The same, in a folder of the caller's; a Fault names who is to blame. No process is left."""
    lifeline, ours = os.pipe()
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(file), function, str(rank), str(world), folder],
            env={
                **os.environ,
                "BENCH_ARGUMENTS": json.dumps(arguments),
                "BENCH_LIFELINE": str(lifeline),
                _progress.FOLDER: folder,
                "OMP_NUM_THREADS": "1",
                **TUNING,
            },
            stdout=2,  # what a peer's library prints is no part of the result
            pass_fds=[lifeline],
            start_new_session=True,  # with what a peer may start, such as a compiler
        )
        for rank in range(world)
    ]
    os.close(lifeline)
    try:
        began = time.monotonic()
        while any(one.poll() is None for one in started):
            if any(one.poll() for one in started):  # the others would wait for it
                break
            _check_late(Path(folder), world, began, limit)
            time.sleep(0.05)
        _check_ended(Path(folder), [one.poll() for one in started])
    finally:
        for one in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
        os.close(ours)
    return [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(world)]


def _check_late(folder: Path, world: int, began: float, limit: float) -> None:
    for rank in range(world):
        name, spent, since = _progress.busy(folder, rank)
        if name is not None and spent > limit:
            raise Fault(
                f"not done after {spent:.0f} s, and --limit allows a method {limit:g} s", name
            )
        if name is None and time.monotonic() - max(began, since) > BETWEEN:
            raise Fault(f"rank {rank} was in no method's turn for {BETWEEN} s")


def _check_ended(folder: Path, codes: Sequence[int | None]) -> None:
    """Raise if a rank has failed: one that ended without a word is the cause, else the first that
    raised; the others have lost it."""
    causes = []
    for rank, code in enumerate(codes):
        record, name = folder / f"error-{rank}.json", _progress.busy(folder, rank)[0]
        if record.exists():
            error = json.loads(record.read_text())
            why = f"rank {rank} raised {error['why']}"
            causes.append((error["at"], rank, why, error["method"] or name))
        elif code is not None and code < 0:
            why = f"rank {rank} was ended by {signal.Signals(-code).name}"
            causes.append((0.0, rank, why, name))
        elif code:
            causes.append((0.0, rank, f"rank {rank} ended with exit code {code}", name))
    if causes:
        _, _, why, name = min(causes, key=lambda cause: cause[:2])
        raise Fault(why, name)


def _main(file: str, function: str, rank: str, world: str, folder: str) -> None:
    lifeline = int(os.environ["BENCH_LIFELINE"])
    end_with(lifeline, lambda: shutil.rmtree(folder, ignore_errors=True))
    torch.set_num_threads(1)
    me = ranks.start(int(rank), int(world), rendezvous=Path(folder) / "rendezvous", timeout=120)
    try:
        arguments = json.loads(os.environ["BENCH_ARGUMENTS"])
        result = runpy.run_path(file)[function](me, **arguments)
        (Path(folder) / f"{rank}.json").write_text(json.dumps(result))
    except Exception as error:
        first = (str(error).strip() or "without a word").splitlines()[0]
        record = {"at": time.monotonic(), "why": f"{type(error).__name__}: {first}"}
        record["method"] = getattr(error, "method", None)
        new = Path(folder) / f".error-{rank}"
        new.write_text(json.dumps(record))
        new.replace(Path(folder) / f"error-{rank}.json")
        raise
    finally:
        ranks.stop()


if __name__ == "__main__":
    _main(*sys.argv[1:])
