"""A folder of checkpoints is written by one save at a time, and the last K of them stay."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from course_lib import checkpoint
from course_lib.checkpoint import folder
from course_lib.pretrained.header import CheckpointError
from tests.course_lib.checkpoint.parts import Layout, engine_of, losses

LAYOUT = Layout("2x1", 2)


def two_writers(me, top: str) -> list:
    """A save while another run's goes on in the same folder, and after it has ended."""
    with engine_of(me, LAYOUT, top) as (engine, mesh):
        losses(engine, mesh, 0, 1)
        checkpoint.save(top, 1, engine, mesh)
        other = folder.Claim(Path(top))
        if me.rank == 0:
            other.take()
            (Path(top) / ".step-000002.part").mkdir()
            (Path(top) / ".step-000002.part" / "model.safetensors").write_bytes(b"another run's")
            (Path(top) / ".git").mkdir()
        dist.barrier()
        said = []
        for step in (2, 3):
            with pytest.raises(CheckpointError) as caught:
                checkpoint.save(top, step, engine, mesh)
            said.append(str(caught.value))
            assert (Path(top) / ".step-000002.part" / "model.safetensors").exists()
        dist.barrier()
        other.release()
        dist.barrier()
        path = checkpoint.save(top, 2, engine, mesh)
        return [*said, path.name, sorted(entry.name for entry in Path(top).iterdir())]


def test_two_runs_do_not_save_into_one_folder_at_a_time(pool, tmp_path):
    for first, second, name, entries in pool.run(2, two_writers, str(tmp_path / "run")):
        assert first == second and first.startswith(
            f"rank 0: {tmp_path / 'run'}: a different run, or an earlier save of this run, "
        )
        assert "Wait for it, or name a separate folder" in first
        # The other's leftovers go once it has ended; what is nobody's checkpoint is left alone.
        assert (name, entries) == (
            "step-000002", [".git", "latest", "step-000001", "step-000002"],
        )  # fmt: skip


@pytest.mark.cpu("locks of files")
def test_a_claim_is_one_save_s_alone_and_none_where_there_are_no_locks(tmp_path, monkeypatch):
    first = folder.Claim(tmp_path / "a" / "b")
    first.take()
    refusals = []

    def second() -> None:
        try:
            folder.Claim(tmp_path / "a" / "b").take()
        except CheckpointError as refusal:
            refusals.append(str(refusal))

    thread = threading.Thread(target=second)  # of the same process: a save that goes on beside it
    thread.start()
    thread.join(30)
    assert len(refusals) == 1
    with pytest.raises(CheckpointError):
        folder.sweep(tmp_path / "a" / "b")
    first.release()
    with folder.Claim(tmp_path / "a" / "b") as held:
        assert held.held

    def flock(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(folder.fcntl, "flock", flock)
    with folder.Claim(tmp_path / "a" / "b") as held:
        assert held.held


def test_the_last_k_stay_and_no_other_number_is_taken(pool, tmp_path):
    with pytest.raises(CheckpointError, match=f"there is no checkpoint in {tmp_path / 'run'}"):
        checkpoint.last(tmp_path / "run")
    pool.run(1, kept, str(tmp_path / "run"))


def kept(me, top: str) -> None:
    with engine_of(me, Layout("1x1", 0), top) as (engine, mesh):
        for step, keep, names in (
            (1, 2, [1]), (3, 2, [1, 3]), (5, 2, [3, 5]), (4, 1, [4, 5]), (6, 3, [4, 5, 6]),
        ):  # fmt: skip
            path = checkpoint.save(top, step, engine, mesh, keep=keep)
            assert [folder.number_of(one) for one in folder.whole(Path(top))] == names
            assert checkpoint.last(top) == path
        for wrong in ({"keep": 0}, {"keep": -1}, {"keep": True}):
            with pytest.raises(ValueError, match="use 1 or more"):
                checkpoint.save(top, 7, engine, mesh, **wrong)
        for step in (-1, 1.5, "7", True):
            with pytest.raises(ValueError, match="the number of completed steps, 0 or more"):
                checkpoint.save(top, step, engine, mesh)
