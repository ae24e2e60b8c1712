"""Processes for a benchmark's ranks, on one machine: started, watched and ended.

A rank that is late, raises or dies is reported with the method of its turn. Each rank runs this
file too.
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

LIMIT = 600  # seconds per method over all its turns, unless --limit differs
BETWEEN = 300  # seconds outside all methods, such as the start
# For all methods. Large pages, since the kernel would spend much of a step clearing small ones. One
# hardware queue, so that a GPU starts work in launch order: a sum before the next product.
TUNING = {"THP_MEM_ALLOC_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


class Fault(RuntimeError):
    """The reason why ranks did not finish, and the method of that turn, if there was one."""

    def __init__(self, why: str, method: str | None = None):
        super().__init__(why)
        self.method = method


def run(
    world: int, file: str | Path, function: str, *, limit: float = LIMIT, **arguments
) -> list[dict]:
    """Return the result of `function(me, **arguments)` in a benchmark's file for each rank."""
    with tempfile.TemporaryDirectory(prefix="course-bench-") as folder:
        try:
            return attempt(world, file, function, folder, limit, arguments)
        except Fault as fault:
            of = "" if fault.method is None else f"{fault.method}: "
            raise RuntimeError(f"a rank of the benchmark failed, see above. {of}{fault}") from fault


def attempt(
    world: int, file: str | Path, function: str, folder: str, limit: float, arguments: Mapping
) -> list[dict]:
    """Do the same in the caller's folder; a Fault names the cause. No process is left."""
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
            stdout=2,  # a peer's output is not part of the result
            pass_fds=[lifeline],
            start_new_session=True,  # includes a peer's processes, such as a compiler
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
                f"not done after {spent:.0f} s, but --limit allows {limit:g} s per method", name
            )
        if name is None and time.monotonic() - max(began, since) > BETWEEN:
            raise Fault(f"rank {rank} was in no method's turn for {BETWEEN} s")


def _check_ended(folder: Path, codes: Sequence[int | None]) -> None:
    """Raise if a rank has failed. The cause is a rank that ended without an error message, else the
    first that raised; the other ranks only lost it."""
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
        first = (str(error).strip() or "without a message").splitlines()[0]
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
