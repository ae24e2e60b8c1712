"""A save that does not stop the training: it copies to host memory, and a thread writes the copy.

Each rank copies its part, and training continues. Each rank's thread writes a report file when its
bytes are on disk. After all reports, rank 0's thread publishes the checkpoint. Lesson 14.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.hooks import RemovableHandle

from course_lib.checkpoint import folder
from course_lib.checkpoint.box_writer import BoxWriter, make
from course_lib.checkpoint.contents import Contents
from course_lib.checkpoint.engine_record import groups_of
from course_lib.checkpoint.files import SHARD_BYTES, of_all, report_of
from course_lib.checkpoint.off_gpu import Beside
from course_lib.checkpoint.saving import (
    Written,
    check_numbers,
    finish,
    joined,
    prepared,
    small_files,
    write_own,
)
from course_lib.checkpoint.shared_errors import agreed, merged, not_written, text_of
from course_lib.checkpoint.streams import streams_of
from course_lib.collectives.call import Group
from course_lib.files import write_whole
from course_lib.layout import Box
from course_lib.pretrained.header import CheckpointError
from course_lib.zero import Engine

POLL = 0.02  # seconds between two checks for the other ranks' reports
LIMIT = 1800.0  # seconds that a rank's thread may take
NOTHING: dict[str, dict] = {"shares": {}, "elements": {}}  # before anything is written


class Staged:
    """Copies, in host memory, of the boxes that this rank writes. `put` works like
    `BoxWriter.put`."""

    def __init__(self, beside: Beside) -> None:
        self.beside = beside
        self.boxes: list[tuple[str, Box, torch.Tensor]] = []
        self.bytes = 0

    def put(self, name: str, box: Box, x: torch.Tensor) -> None:
        copy = self.beside.copy(x)
        self.boxes.append((name, box, copy))
        self.bytes += copy.numel() * copy.element_size()


class Saving:
    """A checkpoint that is being written. `staged_bytes` is the size of this rank's copy."""

    def __init__(self, path: Path, groups: Sequence[Group], staged_bytes: int):
        self.path, self.groups, self.staged_bytes = path, groups, staged_bytes
        self.thread: threading.Thread | None = None
        self.hold: RemovableHandle | None = None  # makes updates wait for the copies
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        """True if this rank has finished writing. On rank 0, this means that the checkpoint is
        published or that the save has failed."""
        return self.thread is None or not self.thread.is_alive()

    def settle(self, seconds: float) -> None:
        """Wait at most `seconds` for this rank's thread, without asking other ranks."""
        if self.thread is not None:
            self.thread.join(seconds)

    def wait(self) -> Path:
        """Return the path once the checkpoint is complete; if a rank failed, all ranks raise. Every
        rank calls this method before the next save and at the end."""
        if self.thread is not None:
            self.thread.join()
        if self.hold is not None:
            self.hold.remove()
        with agreed(self.groups, not_written):
            if self.error is not None:
                raise self.error
        return self.path


def save_later(
    top: Path | str,
    step: int,
    engine: Engine,
    mesh: DeviceMesh,
    *,
    record: Mapping | None = None,
    files: Mapping[str, str] | None = None,
    keep: int = 2,
    streams: bool = True,
    shard_bytes: float = SHARD_BYTES,
    limit: float = LIMIT,
) -> Saving:
    """Save like `save`, but return once this rank's part is copied; `wait` completes the save.

    A GPU copy runs during the next forward and backward pass, and the next `engine.step` waits for
    it. Change the model in any other way, for example by a load, only after `wait`.
    """
    check_numbers(step, keep)
    top = Path(top)
    planned = prepared(engine, mesh, shard_bytes)
    groups, rank = planned.groups, dist.get_rank()
    part, claim = folder.part_of(top, step), folder.Claim(top)
    beside = Beside()
    staged = {name: Staged(beside) for name in planned.files}
    texts: dict[str, str] = {}
    try:

        def stage() -> Written:
            if rank == 0:
                claim.take()
                folder.begin(top, step)
                make(part, list(planned.files.values()))
            # The forward pass may change a buffer while it is being copied.
            planned.buffers = {name: x.clone() for name, x in planned.buffers.items()}
            scalars = write_own(planned, engine, staged)
            return Written(scalars, groups_of(engine), dict.fromkeys(staged, NOTHING))

        copied = merged(groups, stage, joined)
        states = streams_of(mesh) if streams else None
        if rank == 0:
            texts = small_files(engine, mesh, step, record or {}, copied, states)
            texts |= files or {}
    except Exception:
        if claim.held:
            folder.discard(top, step)
        claim.release()
        raise
    total = sum(copies.bytes for copies in staged.values())
    saving = Saving(top / folder.named(step), groups, total)
    saving.hold = beside.before(engine.optimizer)
    world = dist.get_world_size()

    def work() -> None:
        stop = time.monotonic() + limit
        try:
            beside.wait()
            _write(part, rank, planned, staged)
            if rank == 0:
                reports = _all_reports(part, world, stop)
                finish(part, planned, Written({}, {}, reports), texts)
                folder.publish(top, step, keep)
        except Exception as error:
            saving.error = error
            with contextlib.suppress(OSError):
                _report(part, rank, {"error": text_of(error, not_written)})
            if rank == 0:
                folder.discard(top, step)
        finally:
            staged.clear()
            claim.release()

    saving.thread = threading.Thread(target=work, name=f"checkpoint-{step}", daemon=True)
    saving.thread.start()
    return saving


def _write(part: Path, rank: int, planned: Contents, staged: Mapping[str, Staged]) -> None:
    report: dict[str, dict] = {}
    for stem, files in planned.files.items():
        with BoxWriter(part, files) as pen:
            for name, box, x in staged[stem].boxes:
                pen.put(name, box, x)
            pen.sync()
        report[stem] = report_of(pen)
    _report(part, rank, report)


def _report(part: Path, rank: int, report: Mapping) -> None:
    write_whole(part / f"rank-{rank}.json", json.dumps(report))


def _all_reports(part: Path, world: int, stop: float) -> dict[str, dict]:
    """Collect all ranks' reports once all exist, and delete the report files."""
    files = [part / f"rank-{rank}.json" for rank in range(world)]
    for rank, file in enumerate(files):
        while not file.exists():
            if time.monotonic() > stop:
                raise CheckpointError(
                    f"rank {rank} has not reported that its part of {part} is written, because it "
                    "ended or its disk does not respond. The earlier checkpoints are kept"
                )
            time.sleep(POLL)
    reports = [json.loads(file.read_text()) for file in files]
    for rank, report in enumerate(reports):
        if "error" in report:
            raise CheckpointError(f"rank {rank}: {report['error']}")
        files[rank].unlink()
    return of_all(reports)
