"""`%%extra`: a cell on more ranks beside the notebook's own, and what comes back from them."""

from __future__ import annotations

import psutil
import pytest

from course_classroom.notebook import extra


class Ranks:
    """Ranks that note every request."""

    def __init__(self, world: int, log: list) -> None:
        self.world, self.log, self.variables = world, log, {}

    def run(self, cell: str, deadline: float) -> None:
        self.log.append((cell, deadline))
        if "fail" in cell:
            raise extra.RanksFailed("rank 1 raised it")

    def push(self, values: dict) -> None:
        self.variables.update(values)

    def pull(self, expression: str) -> list:
        return [f"{expression} of {rank}" for rank in range(self.world)]


@pytest.fixture
def magics(monkeypatch):
    """The magics over pretended ranks, and what happened to these."""
    from contextlib import contextmanager
    from types import SimpleNamespace

    from course_classroom import judge as checks

    log: list = []

    @contextmanager
    def pretended(world: int):
        log.append(f"{world} begin")
        yield Ranks(world, log)
        log.append(f"{world} end")

    cells = {"f": "def f(): ...\ndef g(): ...", "g": "def f(): ...\ndef g(): ...", "h": "h = 1"}
    monkeypatch.setattr(extra, "extra_ranks", pretended)
    monkeypatch.setattr(checks, "cell_of", cells.__getitem__)
    made = extra.ExtraMagics(None)
    made.shell = SimpleNamespace(user_ns={"home": "/h"})
    made.log = log
    return made


def test_ranks_that_are_kept_wait_for_the_next_cell(magics):
    magics.run("2 --keep", "a")
    magics.run("2 --keep", "b")
    assert magics.log == ["2 begin", ("a", 30.0), ("b", 30.0)]
    magics.run("3 --keep", "c")  # of another number: the others end first
    assert magics.log[3:] == ["2 end", "3 begin", ("c", 30.0)]
    magics.run("stop")
    magics.run("stop")
    assert magics.log[6:] == ["3 end"]


def test_a_cell_that_fails_leaves_no_ranks_behind(magics):
    with pytest.raises(extra.RanksFailed):
        magics.run("2", "fail")
    assert magics.log[-1] == "2 end"
    magics.run("2 --keep", "a")
    with pytest.raises(extra.RanksFailed):
        magics.run("2 --keep", "fail")
    magics.run("2", "b")
    assert magics.log[-2:] == [("b", 30.0), "2 end"], "kept ranks are kept after a mistake"


@pytest.mark.parametrize(
    ("line", "said"),
    [("", "pass the number of ranks"), ("two", "%%extra: argument world"), ("2 --pul a", "pul")],
)
def test_a_line_that_cannot_be_says_what_is_meant(magics, line, said):
    with pytest.raises(ValueError, match=said):
        magics.run(line, "a")
    with pytest.raises(ValueError, match="write `%extra stop`"):
        magics.run("4")
    assert magics.log == []


MISMATCH = """
from course_lib.ledger import ledger

with ledger() as book:
    dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
"""


def test_extra_ranks_run_cells_tell_failures_and_go(capsys):
    with extra.extra_ranks(2) as two:
        two.run("x = torch.ones(3) * rank\ndist.all_reduce(x)\nprint(x.sum().item())")
        assert [x.tolist() for x in two.pull("x")] == [[1.0] * 3] * 2
        pids = two.pull("__import__('os').getpid()")
        # An open ledger stands between torch and the referee, and must not blind it.
        story = r"disagree.*all_reduce\(sum\).*all_reduce\(max\)"
        with pytest.raises(extra.RanksFailed, match=story):
            two.run(MISMATCH)
    assert capsys.readouterr().out == "[rank 0] 3.0\n[rank 1] 3.0\n"
    assert not any(psutil.pid_exists(pid) for pid in pids)
