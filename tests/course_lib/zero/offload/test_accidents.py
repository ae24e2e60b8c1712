"""Disks that are slow, full or cut short, and folders that are missing, foreign or in use.

Every rank hears of it with the cause, and an engine that is half updated refuses to go on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib.zero.offload import Files
from course_lib.zero.offload.shared_errors import OffloadError
from tests.course_lib.tensor_parallel.parts import said
from tests.course_lib.zero.offload.parts import FLOAT, WAYS, offloaded, trained, weights
from tests.course_lib.zero.parts import loss_of, train

CASE = FLOAT.but(stage=3, steps=2, accumulate=1, decay=False, stage3={"persist": 0})


class Slow(Files):
    """A disk that takes its time, and not the same for every block."""

    def _read(self, file, offset, into):
        time.sleep(0.001 * (1 + offset // 4096 % 3))
        super()._read(file, offset, into)

    def _write(self, file, offset, data):
        time.sleep(0.03)  # longer than the update of the next bucket
        super()._write(file, offset, data)


class Full(Files):
    """A disk that is full from the n-th write on."""

    left = 1 << 30

    def _write(self, file, offset, data):
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, f"writing {file.path} failed: no space left on the device")
        super()._write(file, offset, data)


def slow(me, folder):
    plain, losses, norms = trained(me, CASE.but(steps=4))
    for way in ("3-nvme", "3-nvme-nvme"):
        io = Slow(threads=12, block=4096)  # so many that a read need not queue behind a write
        engine, mine, own = trained(me, CASE.but(steps=4), offload=offloaded(way, folder, io=io))
        assert all(torch.equal(a, b) for a, b in zip(mine, losses, strict=True)) and own == norms
        want = weights(plain)
        assert all(torch.equal(x, want[name]) for name, x in weights(engine).items())
        engine.close()


def test_a_slow_disk_changes_no_bit(pool, tmp_path):
    pool.run(2, slow, tmp_path, timeout=120)


def full(me, folder, way):
    io, case = Full(threads=2), CASE.but(stage=WAYS[way][0])
    engine, _, _ = trained(me, case, offload=offloaded(way, folder, io=io))
    if me.rank == 1:
        io.left = 1  # the second bucket of the step
    loss, _ = loss_of(case, engine, 2, me.rank, me.world, 0)
    engine.backward(loss)
    try:
        engine.step()
    except OffloadError as error:
        told, number = str(error), error.errno
    assert number == errno.ENOSPC and "no space left" in told and "rank-00001" in told, told
    assert "the step is incomplete" in told and "last checkpoint" in told, told
    for call in (
        lambda: engine(torch.zeros(2, 5)),
        lambda: engine.backward(loss),
        engine.step,
        lambda: engine.gathered(engine.model),
    ):
        assert "no space left" in said(RuntimeError, call)
    assert all(not unit.whole for unit in getattr(engine.shards, "units", []))
    engine.close()
    dist.barrier()
    assert not list(folder.iterdir())


@pytest.mark.parametrize("way", ["1-nvme", "3-nvme"])
def test_a_disk_that_fills_up_stops_every_rank(pool, way, tmp_path):
    pool.run(2, full, tmp_path, way, timeout=90)


def too_small(me, folder, way):
    below, case = os.posix_fallocate, CASE.but(stage=WAYS[way][0])

    def limited(fd, offset, nbytes):  # ulimit -f would also stop the store of the groups
        if me.rank == 1 and nbytes > 8192:
            raise OSError(errno.EFBIG, "File too large")
        below(fd, offset, nbytes)

    os.posix_fallocate = limited
    try:
        told = said(OffloadError, trained, me, case, offload=offloaded(way, folder))
    finally:
        os.posix_fallocate = below
    assert "reserving" in told and "rank 1" in told and "No engine was made" in told, told
    dist.barrier()
    assert not list(folder.iterdir())
    engine, _, _ = trained(me, case, offload=offloaded(way, folder))
    engine.close()


@pytest.mark.parametrize("way", ["2-nvme", "3-nvme-nvme"])
def test_a_disk_too_small_is_met_before_the_first_step(pool, way, tmp_path):
    pool.run(2, too_small, tmp_path, way, timeout=90)


def cut_short(me, folder):
    engine, _, _ = trained(me, CASE, offload=offloaded("3-nvme", folder))
    if me.rank == 1:
        os.truncate(engine.home.folder.files[0].path, 4096)
    loss, _ = loss_of(CASE, engine, 2, me.rank, me.world, 0)
    engine.backward(loss)
    told = said(OffloadError, engine.step)
    assert "rank 1" in told and "4096" in told and "another process has changed it" in told, told
    assert "can no longer be used" in said(RuntimeError, engine.step)
    engine.close()


def test_a_file_that_was_cut_short_is_named(pool, tmp_path):
    pool.run(2, cut_short, tmp_path, timeout=90)


def in_pieces(me, folder):
    """The system may read and write less than it was asked for."""
    below = os.preadv, os.pwritev
    os.preadv = lambda fd, memory, at: below[0](fd, [memory[0][:4096]], at)
    os.pwritev = lambda fd, memory, at: below[1](fd, [memory[0][:4096]], at)
    try:
        plain, _, _ = trained(me, CASE)
        engine, _, _ = trained(me, CASE, offload=offloaded("3-nvme-nvme", folder))
        want = weights(plain)
        assert all(torch.equal(x, want[name]) for name, x in weights(engine).items())
        engine.close()
    finally:
        os.preadv, os.pwritev = below


def test_short_reads_and_writes_go_on(pool, tmp_path):
    pool.run(1, in_pieces, tmp_path, timeout=60)


def folders(me, root):
    def refused(path, **more):
        return said(OffloadError, trained, me, CASE, offload=offloaded("3-nvme", path, **more))

    assert "is missing: create it" in refused(root / "nowhere")
    if me.rank == 0:
        (root / "foreign").mkdir()
        (root / "foreign" / "thesis.tex").write_text("mine")
        (root / "good").mkdir()
    dist.barrier()
    told = refused(root / "foreign", take_over=True)
    assert "thesis.tex" in told and "not removed" in told
    assert (root / "foreign" / "thesis.tex").read_text() == "mine"
    assert "no folder" in refused(root / "foreign" / "thesis.tex")
    engine, _, _ = trained(me, CASE, offload=offloaded("3-nvme", root / "good"))
    for take_over in (False, True):
        told = refused(root / "good", take_over=take_over)
        assert "is in use by process" in told and "needs a separate folder" in told, told
    train(me, CASE, engine, steps=[5])  # and the first one goes on
    engine.close()
    engine.close()
    assert "was closed" in said(RuntimeError, engine.step)
    with contextlib.closing(trained(me, CASE, offload=offloaded("3-nvme", root / "good"))[0]):
        dist.barrier()
        names = {path.name for path in (root / "good").iterdir()}
        assert any(f"rank-{me.rank:05d}" in name for name in names) and len(names) > 4, names
        dist.barrier()
    dist.barrier()
    assert not list((root / "good").iterdir())


def test_folders_that_cannot_be_used_are_named(pool, tmp_path):
    pool.run(2, folders, tmp_path, timeout=120)


PROGRAM = """
import sys, torch
from course_lib import ranks, zero
me = ranks.start(0, 1, rendezvous=sys.argv[3])
model = torch.nn.Linear(300, 40)
optimizer = torch.optim.AdamW(model.parameters())
engine = zero.engine(model, optimizer, stage=3, mesh=ranks.mesh(me, dp=1, tp=1), persist=0,
                     offload={"optimizer": "nvme", "folder": sys.argv[1]})
engine.backward(engine(torch.ones(2, 300)).sum())
engine.step()
print("ready", flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
"""


def program(folder: Path, how: str) -> subprocess.Popen:
    meet = folder.with_name(f"{folder.name}-meet")
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), how, str(meet)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def after_a_crash(me, folder, pid):
    told = said(OffloadError, trained, me, CASE, offload=offloaded("3-nvme", folder))
    assert f"process {pid} on " in told and "did not close" in told and "take_over" in told, told
    engine, _, _ = trained(me, CASE, offload=offloaded("3-nvme", folder, take_over=True))
    engine.close()
    dist.barrier()
    assert not list(folder.iterdir())


def test_what_a_crash_leaves_is_named_and_taken_over_when_asked(pool, tmp_path):
    with program(tmp_path, "wait") as left:
        try:
            assert left.stdout.readline() == "ready\n"
        finally:
            left.send_signal(signal.SIGKILL)
    assert [path.name for path in tmp_path.iterdir()], "nothing was left to test with"
    pool.run(2, after_a_crash, tmp_path, left.pid, timeout=90)


def test_a_program_that_ends_without_closing_leaves_nothing(tmp_path):
    with program(tmp_path, "end") as ended:
        assert ended.stdout.readline() == "ready\n"
    assert ended.returncode == 0 and not list(tmp_path.iterdir())
