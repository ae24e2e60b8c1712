"""The folder of a run is that run's alone; what is killed or stopped early leaves nothing that
stands in the way, and says nothing that is not so."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_lib.train import launch, lock
from course_lib.train.lock import LOCK, Lock, locked_folder
from course_lib.train.options import Options, Refused
from course_lib.train.rendezvous import Rendezvous
from tests.course_lib.tensor_parallel.parts import said
from tests.course_lib.train.conftest import COURSE, LIMIT, SMALL, ended, environment
from tests.course_lib.train.test_program import processes, started
from tests.support.pool import ROOT

pytestmark = pytest.mark.own_ranks("those of course train")


def test_a_folder_has_one_holder_who_is_named(tmp_path):
    out = tmp_path / "a" / "run"
    first = Lock(out, 4)
    with pytest.raises(Refused) as caught:
        Lock(out, 1)
    message = str(caught.value)
    assert f"--out {out} is in use by another run, process {os.getpid()} on " in message
    assert "and its 4 rank(s), since 20" in message and "name a different --out" in message
    first.release()
    assert not (tmp_path / "a").exists()  # nothing was put into it
    second = Lock(out, 1)
    (out / "loss.csv").touch()
    second.release()
    assert [one.name for one in out.iterdir()] == ["loss.csv"]


HOLDER = """
import sys, time
from pathlib import Path
from course_lib.train.lock import Lock
lock = Lock(Path(sys.argv[1]), 2)
print("held", flush=True)
time.sleep(600)
"""


def test_a_killed_holder_stands_in_nobody_s_way(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], env=environment(), stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout.readline() == "held\n"
            with pytest.raises(Refused, match=f"process {process.pid} on"):
                Lock(tmp_path, 1)
        finally:
            process.kill()
    assert (tmp_path / LOCK).exists()
    next_ = Lock(tmp_path, 1)
    with pytest.raises(Refused, match=f"process {os.getpid()} on .* 1 rank"):
        Lock(tmp_path, 1)
    next_.release()


def test_a_file_that_another_run_has_just_taken_away_is_no_lock(tmp_path, monkeypatch):
    """The one before it unlinks its file between our opening it and our locking it."""
    calls = []

    def flock(file, how):
        if not calls:
            (tmp_path / LOCK).unlink()
        calls.append(file)
        fcntl.flock(file, how)

    fake = type("fcntl", (), {**vars(fcntl), "flock": staticmethod(flock)})
    monkeypatch.setattr(lock, "fcntl", fake)
    mine = Lock(tmp_path, 1)
    assert len(calls) == 2 and (tmp_path / LOCK).exists()
    with pytest.raises(Refused):
        Lock(tmp_path, 1)
    mine.release()


def test_where_there_are_no_locks_it_is_said(tmp_path, monkeypatch, capsys):
    def flock(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fake = type("fcntl", (), {**vars(fcntl), "flock": staticmethod(flock)})
    monkeypatch.setattr(lock, "fcntl", fake)
    Lock(tmp_path, 1).release()
    assert "is on a file system without locks (No locks available)" in capsys.readouterr().err


def test_two_runs_of_one_second_have_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lock.time, "strftime", lambda form: form.replace("%", ""))
    runs = [Lock(None, 1) for _ in range(3)]
    assert [str(one.folder) for one in runs] == ["runs/Ymd-HMS", "runs/Ymd-HMS-2", "runs/Ymd-HMS-3"]
    for one in runs:
        one.release()
    assert not list((tmp_path / "runs").iterdir())


def entered(me, out):
    with locked_folder(Options(out=out), me) as folder:
        return str(folder)


def all_refused(me, out):
    return said(Refused, entered, me, out)


def test_all_ranks_hear_who_holds_the_folder(pool, tmp_path):
    holder = Lock(tmp_path / "run", 2)
    first, second = pool.run(2, all_refused, str(tmp_path / "run"))
    assert first == second and f"process {os.getpid()} on" in first
    holder.release()
    assert pool.run(2, entered, str(tmp_path / "run")) == [str(tmp_path / "run")] * 2
    (tmp_path / "file").touch()
    for message in pool.run(2, all_refused, str(tmp_path / "file" / "run")):
        assert "Not a directory. Name a writable folder" in message
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_before_there_is_a_group_says_that_nothing_was_trained(tmp_path, number):
    out = tmp_path / "run"
    run = subprocess.Popen(
        [*COURSE, *SMALL, "--tp", "2", "--out", str(out)],
        env=environment("start::1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    limit = time.monotonic() + LIMIT
    while len(processes(str(out))) < 3:
        assert time.monotonic() < limit and run.poll() is None, run.communicate()
        time.sleep(0.05)
    run.send_signal(number)
    printed, complaints = run.communicate(timeout=LIMIT)
    assert (run.returncode, printed) == (128 + number, "")
    assert complaints == (
        f"course train: ended by {number.name} while the ranks were starting, so nothing was "
        f"trained. There is no checkpoint in {out}, so start again\n"
    )
    assert not out.exists() and not processes(str(out))


@pytest.mark.slow
def test_a_rank_killed_before_the_first_checkpoint_is_not_told_to_go_on(tmp_path):
    out = tmp_path / "run"
    done = ended(COURSE, "--tp", 2, *SMALL, "--steps", 9, "--out", out, fault="kill:2:1")
    assert done.returncode == 1
    assert done.stderr.endswith(f"There is no checkpoint in {out}, so start again\n")


@pytest.mark.parametrize("count", [1, 3], ids=["the launcher", "all"])
def test_a_run_that_is_killed_leaves_no_process_and_no_file(tmp_path, count):
    out, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    run = started(COURSE, out, "--tp", "2", variables={"TMPDIR": str(temporary)})
    others = [pid for pid in processes(str(out)) if pid != run.pid]
    assert len(others) == 2
    for pid in [run.pid, *others][:count]:
        os.kill(pid, signal.SIGKILL)
    run.communicate(timeout=LIMIT)
    limit = time.monotonic() + 20
    while processes(str(out)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not processes(str(out)) and not list(temporary.glob("course-*"))
    Lock(out, 1).release()  # nobody holds it


LEFT = """
import os, sys, time
from course_lib.train.rendezvous import abandon
from course_lib.train.stop import end_with
end_with(int(sys.argv[1]), lambda: abandon(sys.argv[2]))
time.sleep(600)
"""


def test_where_a_meeting_needs_a_name_its_ranks_take_it_away(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Rendezvous(named=True) as meeting:
        Path(meeting.path).touch()
        assert meeting.descriptors == [] and len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())
    path, (reads, writes) = Rendezvous(named=True).path, os.pipe()
    left = subprocess.Popen(
        [sys.executable, "-c", LEFT, str(reads), path], pass_fds=[reads], env=environment(),
        cwd=ROOT,
    )  # fmt: skip
    os.close(reads)
    os.close(writes)
    assert left.wait(timeout=LIMIT) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ended", [{0: 1, 1: -9, 2: 1}, {1: -9, 2: 1, 0: 1}, {2: 1, 0: 1, 1: -9}])
def test_the_cause_is_told_in_whatever_order_ranks_end(ended, capsys):
    """Who has lost a neighbour ends as well, perhaps before the launcher looks."""
    ranks = object.__new__(launch._Ranks)
    ranks.signals, ranks.early, ranks.unheard, ranks.out = [], False, False, None
    ranks.ended, ranks.printed = ended, [io.BytesIO() for _ in ended]
    assert ranks._outcome() == 1
    assert capsys.readouterr().err.startswith("course train: rank 1 was ended by SIGKILL, so ")
