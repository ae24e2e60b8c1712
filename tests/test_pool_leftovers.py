"""No rank of the pool, and no file of it, outlives a pytest that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.pool import ROOT


def wait_for_ever(me, folder):
    (Path(folder) / f"{os.getpid()}").touch()
    if me.rank == 0:
        time.sleep(1000)
    dist.all_reduce(torch.ones(2))


def test_nothing_outlives_a_killed_pytest(tmp_path):
    inner = tmp_path / "test_inner.py"
    inner.write_text(
        textwrap.dedent(
            """
            from tests.test_pool_leftovers import wait_for_ever

            def test_inner(pool, tmp_path_factory):
                pool.run(2, wait_for_ever, FOLDER, timeout=500)
            """
        ).replace("FOLDER", repr(str(tmp_path / "pids")))
    )
    (tmp_path / "pids").mkdir()
    (tmp_path / "temporary").mkdir()
    pytest_itself = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--noconftest", inner],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        pids = _within(60, lambda: _two_pids(tmp_path / "pids"))
        time.sleep(0.3)  # one of them is inside the collective by now
    finally:
        pytest_itself.kill()
        pytest_itself.wait()
    assert len(pids) == 2
    try:
        assert _within(5, lambda: not any(_runs(pid) for pid in pids))
        assert _within(5, lambda: not list((tmp_path / "temporary").glob("course-pool-*")))
    finally:
        for pid in pids:  # where this test fails, it still leaves nobody behind
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _two_pids(folder):
    pids = [int(path.name) for path in folder.iterdir()]
    return pids if len(pids) == 2 else []


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not (status.exists() and "State:\tZ" in status.read_text())


def _within(seconds, condition):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if found := condition():
            return found
        time.sleep(0.05)
    return condition()
