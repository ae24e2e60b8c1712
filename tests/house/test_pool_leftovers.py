"""No rank of the pool, and no file of it, outlives a pytest that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.commands import ROOT, alive, gone, until


def wait_for_ever(me, folder):
    (Path(folder) / f"{os.getpid()}").touch()
    if me.rank == 0:
        time.sleep(1000)
    dist.all_reduce(torch.ones(2))


INNER = """
from tests.house.test_pool_leftovers import wait_for_ever

def test_inner(pool, tmp_path_factory):
    pool.run(2, wait_for_ever, {folder!r}, timeout=500)
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_nothing_outlives_a_killed_pytest(tmp_path, start):
    inner = tmp_path / "test_inner.py"
    inner.write_text(INNER.format(folder=str(tmp_path / "pids")))
    (tmp_path / "pids").mkdir()
    (tmp_path / "temporary").mkdir()
    pytest_itself = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--noconftest", inner],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(tmp_path / "temporary"),
            "COURSE_START": start,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(list((tmp_path / "pids").iterdir())) == 2)
        time.sleep(0.3)  # one of them is inside the collective by now
    finally:
        pytest_itself.kill()
        pytest_itself.wait()
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    try:
        until(lambda: not any(map(alive, pids)), 5)
        until(lambda: not list((tmp_path / "temporary").glob("course-pool-*")), 5)
    finally:
        assert gone(*pids)  # where this test fails, it still leaves nobody behind
