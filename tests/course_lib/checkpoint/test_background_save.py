"""A checkpoint that is written beside the training is the one of the step it was asked at."""

from __future__ import annotations

import errno
import json
import threading
import time
from pathlib import Path

import pytest

from course_lib import checkpoint
from course_lib.checkpoint import background_save
from course_lib.checkpoint.box_writer import BoxWriter
from course_lib.pretrained.header import CheckpointError
from tests.course_lib.checkpoint.parts import Layout, engine_of, losses
from tests.course_lib.tensor_parallel.parts import said
from tests.course_lib.train.test_layouts import SMALL, trained

FILES = ["config.json", "model.safetensors", "optimizer.safetensors", "tensors.json"]


def both_ways(me, folder: str, layout: Layout) -> tuple:
    """Save at once, and later, with steps and the writing held up between."""
    gate, put = threading.Event(), BoxWriter.put
    first_has_written = Path(folder) / "later" / ".step-000002.part" / "rank-0.json"

    def held_up(self, *args):
        if threading.current_thread() is not threading.main_thread():
            assert gate.wait(60)
            while me.rank and not first_has_written.exists():  # rank 0 is done, and has to wait
                time.sleep(0.01)
        put(self, *args)

    with engine_of(me, layout, folder) as (engine, mesh):
        losses(engine, mesh, 0, 2)
        checkpoint.save(f"{folder}/now", 2, engine, mesh)
        BoxWriter.put = held_up
        try:
            saving = checkpoint.save_later(f"{folder}/later", 2, engine, mesh)
            losses(engine, mesh, 2, 2)
            early = saving.done, Path(saving.path).exists()
            gate.set()
            path = saving.wait()
        finally:
            BoxWriter.put = put
        own = sum(x.numel() * x.element_size() for _, x in engine.own_tensors())
    return early, str(path), saving.staged_bytes, own


@pytest.mark.parametrize(
    "layout", [Layout("2x1", 1), Layout("1x2", 0), Layout("2x1", 3, None, "bfloat16")],
    ids=lambda layout: layout.name,
)  # fmt: skip
def test_it_is_the_step_it_was_asked_at(pool, tmp_path, layout):
    reports = pool.run(2, both_ways, str(tmp_path), layout)
    now, then = tmp_path / "now" / "step-000002", tmp_path / "later" / "step-000002"
    for early, path, _, _ in reports:
        assert early == (False, False) and path == str(then)
    checkpoint.check(then)
    for name in FILES:
        assert (now / name).read_bytes() == (then / name).read_bytes(), name
    assert sorted(file.name for file in then.iterdir()) == sorted(f.name for f in now.iterdir())
    # Every byte of the tensors is copied once, by the rank that writes it.
    written = json.loads((then / "tensors.json").read_text())["files"].values()
    headers = sum(8 + header_length(then / name) for name in ("model", "optimizer"))
    copied = sum(staged for _, _, staged, _ in reports)
    assert copied == sum(file["bytes"] for file in written) - headers
    if layout.precision == "as is" and layout.stage:  # nobody copies more than is its own
        assert all(staged <= own for _, _, staged, own in reports)


def header_length(path: Path) -> int:
    with path.with_suffix(".safetensors").open("rb") as file:
        return int.from_bytes(file.read(8), "little")


def broken(me, folder: str, way: str) -> list:
    """The second save fails on rank 1: it has no room, or is silent until nobody waits for it."""
    write, limit = background_save._write, 0.5 if way == "silent" else 60.0

    def no_room(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with engine_of(me, Layout("2x1", 2), folder) as (engine, mesh):
        losses(engine, mesh, 0, 1)
        checkpoint.save_later(folder, 1, engine, mesh).wait()
        if me.rank == 1:
            background_save._write = no_room if way == "full" else (lambda *args: None)
        try:
            saving = checkpoint.save_later(folder, 2, engine, mesh, limit=limit)
            message = said(CheckpointError if way == "silent" else Exception, saving.wait)
            left = [entry.name for entry in Path(folder).iterdir() if entry.name[0] == "."]
        finally:
            background_save._write = write
        last = checkpoint.save_later(folder, 3, engine, mesh).wait()
    return [message, str(last), left]


@pytest.mark.parametrize(
    ("way", "text"),
    [("full", "No space left on device"), ("silent", "rank 1 has not reported that its part of")],
)
def test_what_fails_on_a_rank_is_raised_on_all_and_the_one_before_stays(pool, tmp_path, way, text):
    for message, last, left in pool.run(2, broken, str(tmp_path / "run"), way):
        assert text in message and not left
        checkpoint.check(last)
    names = sorted(entry.name for entry in (tmp_path / "run").iterdir())
    assert names == ["latest", "step-000001", "step-000003"]


def program(me, folder: str) -> list:
    argv = [*SMALL, "--tp", "1", "--stage", "2", "--save-every", "2"]
    ways = {"now": [], "later": ["--async-save"]}
    return [trained(me, [*argv, *way], f"{folder}/{name}") for name, way in ways.items()]


def test_a_run_that_saves_so_leaves_the_same(pool, tmp_path):
    now, then = pool.run(2, program, str(tmp_path))[0]
    assert now["losses"] == then["losses"]
    for step in ("step-000004", "step-000006"):
        for name in FILES:
            one, other = (tmp_path / way / "checkpoints" / step / name for way in ("now", "later"))
            assert one.read_bytes() == other.read_bytes(), (step, name)
    assert (tmp_path / "later" / "checkpoints" / "latest").read_text() == "step-000006\n"
