"""A deadline counts what the ranks had of the machine, and a busy machine is no verdict."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest

from course_lib.classroom import own_time, runs
from course_lib.classroom.checks import judge
from course_lib.classroom.checks.answer import read
from course_lib.classroom.checks.finding import Finding, NotJudged
from course_lib.classroom.checks.lesson_01 import trial
from course_lib.classroom.hangs import Scene
from course_lib.classroom.own_time import OwnTime
from tests.classroom.conftest import told

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="the kernel counts no queueing (schedstat)"
)


@pytest.fixture
def program() -> Iterator:
    """Start a Python program; all of them end with the test."""
    made: list[subprocess.Popen] = []

    def start(code: str) -> int:
        made.append(subprocess.Popen([sys.executable, "-c", code]))
        return made[-1].pid

    yield start
    for one in made:
        one.kill()
        one.wait()


def look(spent: OwnTime, seconds: float) -> OwnTime:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and not spent.over():
        time.sleep(0.02)
        spent.look(spent.pids)
    return spent


def test_a_process_asleep_spends_its_own_time(program):
    spent = look(OwnTime([program("import time; time.sleep(60)")], 1.0), 5.0)
    assert spent.over() and not spent.starved()
    assert spent.idle > 0.5 and spent.wall < 3.0


def test_a_process_at_work_spends_its_own_time(program):
    pid = program("while True: pass")
    limit = time.monotonic() + 20
    while psutil.Process(pid).cpu_times().user < 0.3 and time.monotonic() < limit:
        time.sleep(0.02)  # its interpreter starts, which waits for the disk
    spent = look(OwnTime([pid], 0.5), 20.0)
    assert spent.over() and (spent.at_work > 0.3 or spent.starved())


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


def test_who_queues_has_spent_nothing(machine):
    spent = machine(Counted(p1=(0.02, 0.97), p2=(0.0, 0.0)), 10.0, 1000.0)
    assert spent.wall > 10.0 * own_time.SHARE and spent.own < 10.0, "ended by the wall alone"
    assert spent.starved()


def test_ranks_that_queue_one_after_another_have_spent_nothing_either(machine):
    spent = machine(Counted(p1=(0.02, 0.4), p2=(0.02, 0.4), p3=(0.01, 0.15)), 10.0, 100.0)
    assert not spent.over() and spent.starved()


def test_loops_side_by_side_are_ended_by_what_each_has_worked(machine):
    """Each queues for the others, so that their own time together stands still."""
    loops = {f"p{i}": (0.6, 0.4) for i in (1, 2, 3)}
    spent = machine(Counted(**loops), 10.0, 1000.0, work=5.0)
    assert spent.over() and spent.wall < 9.0 and spent.own < 1.0 and not spent.starved()
    assert spent.left() == "5 s of the ranks' own time, 5 s used"


def test_who_waits_has_all_of_the_limit(machine):
    spent = machine(Counted(p1=(0.1, 0.0)), 10.0, 9.0, work=5.0)
    assert not spent.over()
    assert spent.left() == "10 s of the ranks' own time, 9 s used"


def test_a_loop_on_a_busy_machine_is_a_loop(machine):
    spent = machine(Counted(p1=(0.05, 0.95), p2=(0.0, 0.0)), 10.0, 1000.0)
    assert spent.over() and 3.0 < spent.at_work < 10.0 and not spent.starved()


def test_who_sleeps_on_a_busy_machine_sleeps(machine):
    spent = machine(Counted(p1=(0.0, 0.0), p2=(0.0, 0.0)), 10.0, 1000.0)
    assert spent.over() and spent.wall < 11.0 and not spent.starved()


def test_a_quick_end_on_a_quiet_machine_is_no_excuse(machine):
    spent = machine(Counted(p1=(0.1, 0.01), p2=(0.05, 0.01)), 10.0, 2.0)
    assert not spent.over() and not spent.starved()


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


@pytest.fixture(scope="module")
def court() -> Iterator[judge.Judge]:
    made = judge.Judge(idle_minutes=0)
    yield made
    made.stop()


def tried(court: judge.Judge, body: str):
    answer = read("mine", {"mine": ANSWER.replace("BODY", body)})
    court.take(answer)
    given = ([[[2]] * 3], 7, "float64")
    return court.trial(answer, trial.twice, *given, members=[0, 1, 2], when="on 3 ranks")


def test_an_answer_that_met_a_busy_machine_is_not_judged(court, monkeypatch):
    monkeypatch.setattr("course_lib.classroom.cluster.OwnTime", Starved)
    monkeypatch.setattr(judge, "LIMIT", 1.0)
    with pytest.raises(NotJudged, match=r"this machine is busy \(load 61 on 2 cores\)"):
        tried(court, "import time; time.sleep(60)")
    with pytest.raises(Finding, match="ZeroDivisionError") as found:  # which no load explains
        tried(court, "1 / 0")
    assert found.value.name == "raised"
    with pytest.raises(Finding) as found:
        tried(court, "group.rank() or dist.all_reduce(torch.ones(1), group=group)")
    assert found.value.name == "deadlock"


def test_ranks_that_met_a_deadline_are_made_anew(court, monkeypatch):
    monkeypatch.setattr(judge, "LIMIT", 1.0)
    tried(court, "pass")
    before = [rank.process.pid for rank in court.ranks]
    with pytest.raises(Finding, match="loop without end"):
        tried(court, "import time; time.sleep(60)")
    tried(court, "pass")
    assert not set(before) & {rank.process.pid for rank in court.ranks}


def test_ranks_that_cannot_be_started_judge_nobody(monkeypatch):
    """As where a limit of processes, or of memory, is reached."""

    def refused(*args, **kwargs):
        raise OSError(11, "no process could be forked: Resource temporarily unavailable")

    monkeypatch.setattr("course_lib.prepared.start", refused)
    with pytest.raises(NotJudged, match=r"could not be started: .*no process could be forked"):
        judge.Judge(idle_minutes=0).ready()
    assert not [run for run in runs.all_runs() if run.notebook == "checks" and not run.ranks]


def test_a_cell_says_that_it_had_little_of_its_time(two, monkeypatch):
    monkeypatch.setattr("course_lib.classroom.cluster.OwnTime", Starved)
    text = told(two.run("import time; time.sleep(60)", deadline=1.0))
    assert "It had little of them, for this machine is busy (load 61 on 2 cores)" in text


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
