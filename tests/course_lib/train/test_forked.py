"""`course train` forks its ranks; what they do is what started ones do, to the last bit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from course_lib.processes import why_spawned
from tests.course_lib.train.conftest import COURSE, LIMIT, SMALL, STEPS, ended
from tests.course_lib.train.test_program import same_run, started

pytestmark = [
    pytest.mark.own_ranks("those of course train"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only"),
]


def libraries(pid: int) -> list[str]:
    """Where a process has the library that torch computes with, and how much of it is its own."""
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if line.endswith("/libtorch_cpu.so")]  # fmt: skip


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_ranks_are_forks_of_their_launcher_and_the_run_is_the_same(undisturbed, tmp_path, start):
    out = tmp_path / start
    # With numpy's threads, as where nobody has said OMP_NUM_THREADS=1 for all of it.
    variables = {"COURSE_START": start, "OPENBLAS_NUM_THREADS": "2"}
    run = started(COURSE, out, "--tp", "2", fault="slow:0.1:", steps=STEPS, variables=variables)
    ranks = psutil.Process(run.pid).children()
    assert len(ranks) == 2 and all(one.environ()["TRAIN_FAULT"] for one in ranks)
    # Random addresses are drawn anew by each interpreter, and inherited by a fork.
    alike = [libraries(one.pid) == libraries(run.pid) for one in ranks]
    assert alike == [start == "fork"] * 2
    assert len({os.getsid(pid) for pid in (run.pid, *(one.pid for one in ranks))}) == 3
    _, complaints = run.communicate(timeout=LIMIT)
    assert (run.returncode, complaints) == (0, ""), complaints
    same_run(undisturbed, out)


@pytest.mark.skipif(bool(why_spawned()), reason="ranks are not forked here")
def test_what_goes_wrong_in_a_forked_rank_is_said_once(tmp_path):
    done = ended(COURSE, "--ranks", 2, *SMALL, "--steps", 3, "--out", tmp_path / "run",
                 fault="raise:2:1")  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith("course train: rank 1: LookupError: a fault\n")
    assert done.stderr.count("Traceback") == 1
