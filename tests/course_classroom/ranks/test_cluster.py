"""Ranks under a notebook: what a cell keeps, what a failure costs, what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from course_classroom.ranks import runs
from course_classroom.ranks.cluster import Cluster
from course_classroom.ranks.rank import RankApp
from tests.course_classroom.conftest import living, printed, told, works


def pids(cluster: Cluster) -> list[int]:
    return [rank.process.pid for rank in cluster.ranks]


def test_variables_last_between_cells_and_travel_both_ways(two):
    two.push({"given": {"w": torch.arange(3.0), "names": ["a", "b"]}})
    two.run("mine = given['w'] * (rank + 1)\nseen = 0")
    two.run("seen = 1\nclass Foo: pass\nstrange = Foo()", ranks=[1])
    assert [t.tolist() for t in two.pull("mine")] == [[0, 1, 2], [0, 2, 4]]
    assert two.pull("given['names']", [1]) == [["a", "b"]] and two.pull("seen") == [0, 1]
    with pytest.raises(RuntimeError, match="rank 0: NameError: name 'nobody' is not defined"):
        two.pull("nobody")
    with pytest.raises(
        RuntimeError, match="rank 1: a value of type Foo cannot be copied; pull num"
    ):
        two.pull("strange if rank else 1")
    with pytest.raises(TypeError, match="a value of type Cluster cannot be copied; push numbers"):
        two.push({"me_too": two})
    assert two.pull("seen") == [0, 1]


def test_a_rank_that_sends_something_else_sends_no_program(two, capfd):
    """What reads it is the notebook's process: a pickle would run there."""
    two.run(
        "from course_classroom.ranks import values\n"
        "class Runs:\n"
        "    def __reduce__(self):\n"
        "        return print, ('a program was run',)\n"
        "import base64, pickle\n"
        "packed, values.pack = values.pack, lambda *_: base64.b64encode("
        "pickle.dumps(Runs())).decode()"
    )
    try:
        with pytest.raises(RuntimeError, match="rank 0: the received text is not a packed value"):
            two.pull("7")
    finally:
        two.run("values.pack = packed")
    assert "a program" not in capfd.readouterr().out
    assert two.pull("7") == [7, 7]


def test_an_error_on_one_rank_keeps_all_variables(two):
    before = pids(two)
    two.run("kept = rank + 10")
    text = told(two.run("if rank == 1:\n    1 / 0\ndist.all_reduce(torch.ones(2))"))
    first, second, last = text.splitlines()
    assert first == "rank 1 raised ZeroDivisionError: division by zero in line 2: 1 / 0"
    assert second.startswith("rank 0 waited in all_reduce(sum) of float32[2] for rank 1 in line 3")
    assert last == "The ranks' variables and groups are unchanged."
    assert two.pull("kept") == [10, 11] and pids(two) == before
    works(two)


def test_the_deadline_frees_sleep_and_loop_and_keeps_variables(two):
    before = pids(two)
    two.run("kept = 5")
    for body in ("import time\nif rank: time.sleep(60)", "while rank:\n    pass"):
        began = time.monotonic()
        ended = two.run(body, deadline=1.0)
        assert ended.timed_out and time.monotonic() - began < 30  # of 60, and of for ever
        assert "rank 1 was still busy in line" in told(ended)
    assert two.pull("kept") == [5, 5] and pids(two) == before
    works(two)


def test_a_rank_that_no_interrupt_reaches_is_replaced(two):
    body = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
    began = time.monotonic()
    text = told(two.run(body + "if rank == 0:\n    time.sleep(60)", deadline=1.0))
    assert "rank 0 did not come back from line 4: time.sleep(60)" in text
    assert text.endswith("The ranks were restarted, so their variables are gone.")
    works(two)
    assert time.monotonic() - began < 45  # of 60: on a busy machine a start takes its time


@pytest.mark.parametrize(
    ("body", "how"),
    [("ctypes.string_at(0)", "was killed by SIGSEGV"), ("os._exit(7)", "ended with exit code 7")],
)
def test_a_dead_rank_is_named_and_replaced(two, body, how):
    code = f"import os, ctypes\nif rank == 1:\n    {body}\ndist.barrier()"
    ended = two.run(code)
    text = told(ended)
    assert not ended.timed_out
    assert text.splitlines()[0].startswith(f"rank 1 {how}")
    assert "their variables are gone" in text
    works(two)


def test_a_rank_that_died_between_cells_is_replaced_and_said(two):
    os.kill(pids(two)[1], signal.SIGKILL)
    two.ranks[1].process.wait()
    ended = two.run("print(rank)")
    assert printed(ended) == ["0\n", "1\n"]
    assert ended.notes == [
        "Since the last cell rank 1 was killed by SIGKILL (often: out of memory). "
        "The ranks were restarted, so their variables are gone."
    ]


ASSERTED = """CUDA error: device-side assert triggered
Search for `cudaErrorAssert' in https://docs.nvidia.com/ for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below
might be incorrect."""


def test_a_rank_that_lost_its_gpu_is_explained_and_replaced(two):
    """CUDA answers every later call of that process with the same error."""
    before = pids(two)
    code = (
        f"kept = 1\nif rank == 1:\n    raise torch.AcceleratorError({ASSERTED!r})\ndist.barrier()"
    )
    first, *_, advice, last = told(two.run(code)).splitlines()
    assert first.startswith(
        "rank 1 lost its GPU to a CUDA error: device-side assert triggered; noticed in line 3: "
    )
    assert "where the program waited for the GPU" in advice
    for part in ("an index outside its table", "CUDA_LAUNCH_BLOCKING=1", "On the CPU"):
        assert part in advice
    assert last == "The ranks were restarted, so their variables are gone."
    assert not set(pids(two)) & set(before)
    works(two)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def f(:", "every rank raised SyntaxError"),
        ("%nosuch", "raised"),
        ("exit()", "a rank ends with its notebook"),
        ("import sys\nsys.exit(3)", "every rank raised SystemExit: 3"),
        ("if rank:\n    raise KeyboardInterrupt('mine')", "rank 1 raised KeyboardInterrupt: mine"),
        ("raise torch.AcceleratorError('CUDA error: out of memory')", "CUDA error: out of memory"),
    ],
)
def test_a_mistake_costs_its_cell_and_no_rank(two, code, words):
    before = pids(two)
    two.run("kept = rank + 10")
    text = told(two.run(code))
    assert words in text and "restarted" not in text
    assert two.pull("kept") == [10, 11] and pids(two) == before
    works(two)


GROUP_OF_ONE = (
    "dist.destroy_process_group()\n"
    "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
)


@pytest.mark.parametrize("code", ["dist.destroy_process_group()", GROUP_OF_ONE])
@pytest.mark.parametrize("who", [None, [0]])
def test_a_cell_that_destroys_or_replaces_its_groups_gets_new_ones(two, code, who):
    two.run("kept = rank")
    ended = two.run(code, ranks=who)
    assert not ended.failed
    made = "New groups were created; the ranks' other variables are unchanged."
    assert ended.notes == [made]
    works(two)
    assert two.pull("kept") == [0, 1]


def test_a_cell_on_some_ranks_cannot_wait_for_the_others(two):
    text = told(two.run("dist.all_reduce(torch.ones(2))", ranks=[0]))
    assert "needs ranks 0, 1, but this cell runs on rank 0 only" in text
    works(two)


def test_idle_ranks_are_released_and_come_back():
    cluster = Cluster(1, idle_minutes=0.5 / 60)
    cluster.start()
    limit = time.monotonic() + 15
    while cluster.running and time.monotonic() < limit:
        time.sleep(0.1)
    assert not cluster.running
    cluster.start()
    works(cluster)
    cluster.stop()


OWNER = """
import sys, time
from course_classroom.ranks.cluster import Cluster
cluster = Cluster(2, idle_minutes=0)
cluster.start()
print(cluster.folder, *[rank.process.pid for rank in cluster.ranks], flush=True)
cluster.run(sys.argv[1], deadline=100.0, checked=False)
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_no_rank_survives_the_sigkill_of_its_notebook(start):
    """A rank that was not forked has no prepared process that takes it along."""
    doing = "dist.all_reduce(torch.ones(3)) if rank else None\nwhile 1: pass"
    how = {"stdout": subprocess.PIPE, "text": True, "env": {**os.environ, "COURSE_START": start}}
    owner = subprocess.Popen([sys.executable, "-c", OWNER, doing], **how)
    folder, *ranks = owner.stdout.readline().split()
    time.sleep(1.0)  # the cell is under way
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    left = living(ranks, 10.0)
    for pid in left:  # where the watch is broken, this test must not leave them either
        os.kill(pid, signal.SIGKILL)
    assert left == []
    assert not Path(folder).exists()


def test_stray_ranks_are_found_and_ended():
    code = OWNER.replace("cluster.run", "import os; os.kill(os.getpid(), 19); cluster.run")
    owner = subprocess.Popen([sys.executable, "-c", code, "1"], stdout=subprocess.PIPE, text=True)
    folder, *ranks = owner.stdout.readline().split()
    try:
        run = next(r for r in runs.all_runs() if str(r.folder) == folder)
        assert run.owner == owner.pid and {str(pid) for pid in run.living()} == set(ranks)
        assert run.owner_alive()
        assert runs.sweep() == 0, "a living notebook's ranks are not stray"
        stopped = subprocess.run(
            [sys.executable, "-m", "course_classroom.cli", "stop", "--all", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert stopped.returncode == 0 and str(owner.pid) in stopped.stdout
        assert living(ranks) == [] and not Path(folder).exists()
    finally:
        owner.kill()
        owner.wait()


def test_nothing_listens_beyond_loopback(two):
    works(two)
    for pid in pids(two):
        for connection in psutil.Process(pid).net_connections("inet"):
            assert connection.laddr.ip in ("127.0.0.1", "::1"), connection


def test_a_rank_neither_looks_for_its_key_s_file_nor_writes_it_again(tmp_path):
    """ipykernel comes back to it after its sockets are open, when it may be gone already."""
    path = tmp_path / "rank-0.json"
    app = RankApp(connection_file=str(path), transport="ipc", ip=str(tmp_path / "rank-0-ipc"))
    app.write_connection_file()
    assert not path.exists()
    path.write_text("no JSON")
    app.write_connection_file()
    assert path.read_text() == "no JSON"
