"""Off a GPU a checkpoint is copied through pinned memory, and nobody is too early for a copy."""

from __future__ import annotations

import threading

import pytest
import torch

from course_lib import checkpoint
from course_lib.checkpoint import off_gpu
from tests.course_lib.checkpoint.late_copies import OnGpu, late_copies
from tests.course_lib.checkpoint.parts import Layout, engine_of, losses

FILES = ["model.safetensors", "optimizer.safetensors", "tensors.json"]


def four_ways(me, folder: str, layout: Layout) -> tuple[list[int], int, int]:
    """Save off the host, off a GPU, and off a GPU beside nothing and beside two steps."""
    window, off_gpu.WINDOW = off_gpu.WINDOW, 100  # bytes: no whole number of rows
    wait, stepped = off_gpu.Beside.wait, threading.Event()

    def late(self) -> None:  # the thread that writes comes after the steps
        if threading.current_thread() is not threading.main_thread():
            assert stepped.wait(60)
        wait(self)

    with engine_of(me, layout, folder) as (engine, mesh):
        hooks = engine.optimizer._optimizer_step_pre_hooks
        losses(engine, mesh, 0, 2)
        checkpoint.save(f"{folder}/host", 2, engine, mesh)
        before = len(hooks)
        try:
            with late_copies(engine) as pinned:
                checkpoint.save(f"{folder}/gpu", 2, engine, mesh)
                buffers = list(pinned)
                checkpoint.save_later(f"{folder}/idle", 2, engine, mesh).wait()
                off_gpu.Beside.wait = late
                saving = checkpoint.save_later(f"{folder}/later", 2, engine, mesh)
                during = len(hooks) - before
                losses(engine, mesh, 2, 2)
                stepped.set()
                saving.wait()
        finally:
            off_gpu.WINDOW, off_gpu.Beside.wait = window, wait
        return buffers, during, len(hooks) - before


@pytest.mark.parametrize(
    "layout", [Layout("2x1", 1), Layout("1x2", 0), Layout("2x1", 3, None, "bfloat16")],
    ids=lambda layout: layout.name,
)  # fmt: skip
def test_off_a_gpu_the_same_bytes_are_written(pool, tmp_path, layout):
    # One pinned buffer for the model's files and one for the optimizer's; updates wait for a save.
    assert pool.run(2, four_ways, str(tmp_path), layout) == [([100, 100], 1, 0)] * 2
    host, *others = (tmp_path / way / "step-000002" for way in ("host", "gpu", "idle", "later"))
    for folder in others:
        checkpoint.check(folder)
        for name in FILES:
            assert (host / name).read_bytes() == (folder / name).read_bytes(), (folder, name)


@pytest.mark.cpu("a GPU that is played")
def test_a_tensor_without_elements_is_one_empty_piece_wherever_it_is(monkeypatch):
    """Its name then has a share of the checksum, on a GPU as on a CPU."""
    monkeypatch.setattr(off_gpu, "WINDOW", 100)
    window = off_gpu.Window()
    window._buffer = torch.empty(100, dtype=torch.uint8)
    for x in (torch.empty(0, 4), torch.empty(0, 4).as_subclass(OnGpu)):
        assert [(at, bytes(piece)) for at, piece in window.pieces(x)] == [(0, b"")]
