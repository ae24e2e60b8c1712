"""Extra ranks: beside a notebook's own, for one cell, and gone without a trace."""

from __future__ import annotations

import psutil
import pytest

from course_lib.classroom.extra import extra_ranks
from course_lib.classroom.magic import RanksFailed

MISMATCH = """
from course_lib.ledger import ledger

with ledger() as book:
    dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
"""


def test_extra_ranks_run_cells_tell_failures_and_go(capsys):
    with extra_ranks(2) as two:
        two.run("x = torch.ones(3) * rank\ndist.all_reduce(x)\nprint(x.sum().item())")
        assert [x.tolist() for x in two.pull("x")] == [[1.0] * 3] * 2
        pids = two.pull("__import__('os').getpid()")
        # An open ledger stands between torch and the referee, and must not blind it.
        with pytest.raises(RanksFailed, match=r"disagree.*all_reduce\(sum\).*all_reduce\(max\)"):
            two.run(MISMATCH)
    assert capsys.readouterr().out == "[rank 0] 3.0\n[rank 1] 3.0\n"
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_extra_ranks_go_when_a_cell_fails():
    pids = []

    def fail():
        with extra_ranks(1) as one:
            pids.extend(one.pull("__import__('os').getpid()"))
            one.run("1 / 0")

    with pytest.raises(RanksFailed, match="ZeroDivisionError"):
        fail()
    assert len(pids) == 1
    assert not psutil.pid_exists(pids[0])
