"""What a save demands of the ranks, that each element was written by one; and of the system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from course_lib import checkpoint
from course_lib.checkpoint import open_checkpoint, saving
from course_lib.pretrained.header import CheckpointError
from tests.course_lib.checkpoint.parts import Layout, engine_of, losses


class Forgetful(saving.BoxWriter):
    """A pen that leaves one weight out, or writes it twice."""

    times = 0

    def put(self, name, box, x) -> None:
        for _ in range(self.times if name.endswith("mlp.c_fc.bias") else 1):
            super().put(name, box, x)


def forgotten(me, top: str, times: int) -> str:
    with engine_of(me, Layout("2x1", 2), top) as (engine, mesh):
        losses(engine, mesh, 0, 1)
        checkpoint.save(top, 1, engine, mesh)
        real, Forgetful.times = saving.BoxWriter, times if me.rank == 1 else 1
        saving.BoxWriter = Forgetful
        try:
            with pytest.raises(CheckpointError) as caught:
                checkpoint.save(top, 2, engine, mesh)
        finally:
            saving.BoxWriter = real
        checkpoint.save(top, 2, engine, mesh)
        return str(caught.value)


@pytest.mark.parametrize("times", [0, 2])
def test_what_no_rank_has_written_is_no_checkpoint(pool, tmp_path, times):
    messages = pool.run(2, forgotten, str(tmp_path / "run"), times)
    assert len(set(messages)) == 1
    assert "mlp.c_fc.bias: the ranks wrote " in messages[0] and " of its 14 elements" in messages[0]
    entries = {entry.name for entry in Path(tmp_path / "run").iterdir()}
    assert entries == {"latest", "step-000001", "step-000002"}


def in_parts(me, top: str) -> None:
    """The system takes 100 bytes of a write at most."""
    pwrite = os.pwrite
    os.pwrite = lambda file, content, at: pwrite(file, content[:100], at)
    try:
        with engine_of(me, Layout("1x1", 2), top) as (engine, mesh):
            losses(engine, mesh, 0, 1)
            path = checkpoint.save(top, 1, engine, mesh)
            checkpoint.check(path)
            before = {text: x.clone() for text, x in engine.own_tensors()}
            checkpoint.load(path, engine, mesh)
            assert all(torch.equal(x, before[text]) for text, x in engine.own_tensors())
    finally:
        os.pwrite = pwrite


def test_what_the_system_takes_in_parts_is_written_whole(pool, tmp_path):
    pool.run(1, in_parts, str(tmp_path / "run"))


def test_a_check_reads_every_piece_of_a_tensor(pool, tmp_path, monkeypatch):
    pool.run(1, in_parts, str(tmp_path / "run"))
    path = checkpoint.last(tmp_path / "run")
    monkeypatch.setattr(open_checkpoint, "AT_ONCE", 64)
    checkpoint.check(path)
    file = path / "optimizer.safetensors"
    raw = bytearray(file.read_bytes())
    for at in (len(raw) - 1, len(raw) - 100):
        file.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(CheckpointError, match="is damaged in "):
            checkpoint.check(path)
