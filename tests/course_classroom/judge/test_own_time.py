"""A deadline counts what the ranks had of the machine, and a busy machine is no verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from course_classroom.judge import judge
from course_classroom.judge.answer import read
from course_classroom.judge.finding import Finding, NotJudged
from course_classroom.ranks import own_time, runs
from course_classroom.ranks.hangs import Scene
from course_classroom.ranks.own_time import OwnTime
from course_lessons.lesson_00 import trial
from tests.course_classroom.conftest import told

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="the kernel counts no queueing (schedstat)"
)


class Counted:
    """Counters of processes as a busy machine would have them: (run, queued) a second."""

    def __init__(self, **rates: tuple[float, float]):
        self.rates = {int(name[1:]): rate for name, rate in rates.items()}
        self.now = 0.0

    def counters(self, pid: int) -> dict:
        ran, queued = self.rates[pid]
        return {pid: (ran * self.now, queued * self.now)}


@pytest.fixture
def machine(monkeypatch):
    """A wait on a machine whose clock and counters are given."""

    def of(counted: Counted, limit: float, seconds: float, work: float | None = None) -> OwnTime:
        monkeypatch.setattr(own_time, "counters", counted.counters)
        monkeypatch.setattr(own_time, "time", SimpleNamespace(monotonic=lambda: counted.now))
        spent = OwnTime(list(counted.rates), limit, work=work)
        while counted.now < seconds and not spent.over():
            counted.now += 0.25
            spent.look(spent.pids)
        return spent

    return of


LOOPS = {f"p{i}": (0.6, 0.4) for i in (1, 2, 3)}  # each queues for the others
QUEUE = {"p1": (0.02, 0.4), "p2": (0.02, 0.4), "p3": (0.01, 0.15)}  # one after another


@pytest.mark.parametrize(
    ("rates", "seconds", "work", "over", "starved", "wall"),
    [
        ({"p1": (0.02, 0.97), "p2": (0.0, 0.0)}, 1000.0, None, True, True, (120.0, 121.0)),
        (QUEUE, 100.0, None, False, True, (100.0, 101.0)),
        (LOOPS, 1000.0, 5.0, True, False, (5.0, 9.0)),
        ({"p1": (0.1, 0.0)}, 9.0, 5.0, False, False, (9.0, 10.0)),
        ({"p1": (0.05, 0.95), "p2": (0.0, 0.0)}, 1000.0, None, True, False, (60.0, 121.0)),
        ({"p1": (0.0, 0.0), "p2": (0.0, 0.0)}, 1000.0, None, True, False, (10.0, 11.0)),
        ({"p1": (0.1, 0.01), "p2": (0.05, 0.01)}, 2.0, None, False, False, (2.0, 3.0)),
    ],
    ids=["queues", "queue in turn", "loops", "waits", "a busy loop", "sleeps", "a quick end"],
)
def test_what_counts_is_what_the_ranks_had(machine, rates, seconds, work, over, starved, wall):
    spent = machine(Counted(**rates), 10.0, seconds, work)
    assert (spent.over(), spent.starved()) == (over, starved)
    assert wall[0] <= spent.wall <= wall[1]
    if work:
        used = "5 s of the ranks' own time, 5 s" if over else "10 s of the ranks' own time, 9 s"
        assert spent.left() == f"{used} used"


def test_without_counters_all_of_the_wall_counts(machine):
    counted = Counted(p1=(0.0, 0.0))
    counted.counters = lambda pid: {}
    assert machine(counted, 10.0, 1000.0).wall < 11.0


class Starved(OwnTime):
    """What an answer meets where others have the processors."""

    def starved(self) -> bool:
        return True

    def busy(self) -> str:
        return "this machine is busy (load 61 on 2 cores)"


ANSWER = "def mine(x, group):\n    BODY\n"


@pytest.fixture
def court(desk) -> judge.Judge:
    return desk.judge


def tried(court: judge.Judge, body: str):
    answer = read("mine", {"mine": ANSWER.replace("BODY", body)})
    court.take(answer)
    given = ([[[2]] * 3], 7, "float64")
    return court.trial(answer, trial.twice, *given, members=[0, 1, 2], when="on 3 ranks")


def test_an_answer_that_met_a_busy_machine_is_not_judged(court, monkeypatch):
    monkeypatch.setattr("course_classroom.ranks.cluster.OwnTime", Starved)
    monkeypatch.setattr(judge, "LIMIT", 1.0)
    with pytest.raises(NotJudged, match=r"this machine is busy \(load 61 on 2 cores\)"):
        tried(court, "import time; time.sleep(60)")
    with pytest.raises(Finding, match="ZeroDivisionError") as found:  # which no load explains
        tried(court, "1 / 0")
    assert found.value.name == "raised"
    with pytest.raises(Finding) as found:
        tried(court, "group.rank() or dist.all_reduce(torch.ones(1), group=group)")
    assert found.value.name == "deadlock"


def test_ranks_that_cannot_be_started_judge_nobody(monkeypatch):
    """As where a limit of processes, or of memory, is reached."""

    def refused(*args, **kwargs):
        raise OSError(11, "no process could be forked: Resource temporarily unavailable")

    monkeypatch.setattr("course_lib.processes.start", refused)
    with pytest.raises(NotJudged, match=r"could not be started: .*no process could be forked"):
        judge.Judge(idle_minutes=0).ready()
    assert not [run for run in runs.all_runs() if run.notebook == "checks" and not run.living()]


def test_a_cell_says_that_it_had_little_of_its_time(two, monkeypatch):
    monkeypatch.setattr("course_classroom.ranks.cluster.OwnTime", Starved)
    text = told(two.run("import time; time.sleep(60)", deadline=1.0))
    assert (
        "The ranks had little of that time, because this machine is busy (load 61 on 2 cores)"
        in text
    )


STOPPED = """
import time
if rank == 0:
    time.sleep(1)
    begun = dist.all_reduce(torch.ones(1), async_op=True)
else:
    dist.all_reduce(torch.ones(1))
dist.barrier()
"""
STOPPER = """
import os, signal, time
time.sleep(0.6)
os.kill(PID, signal.SIGSTOP)
time.sleep(4)
os.kill(PID, signal.SIGCONT)
"""


def test_a_rank_that_cannot_see_yet_what_has_come_is_in_no_deadlock(two, monkeypatch):
    """Two looks a second apart see all ranks wait, though one of them has what it waits for."""
    monkeypatch.setattr(Scene, "look", lambda *args: None)  # asks the stopped rank, in vain
    pid = str(two.ranks[1].process.pid)
    stopper = subprocess.Popen([sys.executable, "-c", STOPPER.replace("PID", pid)])
    ended = two.run(STOPPED)
    stopper.wait()
    assert not ended.failed, told(ended)
