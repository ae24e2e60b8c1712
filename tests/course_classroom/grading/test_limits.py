"""Whatever a submission's processes do, they end within their limits and none of them is left.

The processes here are small ones in the place of the judge, so that each test takes a second.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import textwrap
import uuid
from pathlib import Path

import psutil
import pytest

from course_classroom.grading import marking, walls, watch
from course_classroom.grading.discover import Submission
from course_classroom.grading.handouts import Cell, Handout
from course_classroom.grading.rows import Row
from course_classroom.grading.supervisor import remove
from course_classroom.grading.walls import Walls
from tests.course_classroom.grading.hand_in import blank, save
from tests.support.commands import python

CHECK = Cell("f-check", "code", 'check("f")', "", True, False, 2.0, "f")
HANDOUT = Handout("00_x", "f", (CHECK,))
HEAD = r"""
import json, os, signal, subprocess, sys, threading, time
from course_classroom.grading.sealed import KEY, Seal
seal, pipe = Seal(sys.stdin.buffer.read(KEY)), int(sys.argv[1])
def say(event, **more): os.write(pipe, seal.closed({"event": event, **more}) + b"\n")
def right(points=2): say("verdict", cell="f-check", outcome="right", points=points)
say("read", lesson="00_x", name="f", notes=[])
"""
BESIDE = Walls(landlock=1)  # no namespaces; what is judged here confines nothing of its own
FAR = watch.Limits(seconds=40, memory=2_000_000_000, start=100)


@pytest.fixture(params=["apart", "beside"])
def prefix(request, here) -> Walls:
    """Process numbers of its own, where the system gives them, and the way without."""
    if request.param == "beside":
        return BESIDE
    return here if here.numbers else pytest.skip("unshare gives no process numbers of its own here")


@pytest.fixture(scope="module")
def here() -> Walls:
    """All that this system gives."""
    return walls.built()


def run(tmp_path, monkeypatch, prefix: Walls, script: str, limits=FAR) -> Row:
    """The row of a submission whose judging process runs `script`."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir(exist_ok=True)
    notebook = save(blank(), tmp_path / "anna" / "f.ipynb")
    command = (sys.executable, "-c", HEAD + textwrap.dedent(script))
    grading = marking.Grading([HANDOUT], limits, told=lambda _: None, command=command, walls=prefix)
    (row,) = grading.grade([Submission("anna", notebook, "anna/f.ipynb")])
    assert list((tmp_path / "t").iterdir()) == []
    return row


def sleeping(seconds: str) -> list[int]:
    """The processes that sleep for exactly so long."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        asleep = process.info["status"] != psutil.STATUS_ZOMBIE
        if asleep and (process.info["cmdline"] or [])[-2:] == ["sleep", seconds]:
            found.append(process.pid)
    return found


@pytest.fixture
def nap():
    """A number of seconds that nobody else on this machine sleeps for."""
    return f"99.{uuid.uuid4().int % 10**12:012}"


def test_one_that_behaves_gets_its_points(tmp_path, monkeypatch, prefix):
    row = run(tmp_path, monkeypatch, prefix, 'say("ready"); right()')
    assert (row.outcome, row.points, row.note) == ("right", 2, "")


def test_one_that_does_not_end_is_out_of_time(tmp_path, monkeypatch, prefix):
    limits = watch.Limits(seconds=0.5, start=100)
    row = run(tmp_path, monkeypatch, prefix, 'say("ready"); time.sleep(30)', limits)
    assert (row.outcome, row.points) == ("out of time", 0)


def test_time_counts_from_the_moment_that_the_judge_is_ready(tmp_path, monkeypatch):
    limits = watch.Limits(seconds=4.0, start=100)
    script = 'time.sleep(4.2); say("ready"); time.sleep(0.5); right()'
    row = run(tmp_path, monkeypatch, BESIDE, script, limits)
    assert row.outcome == "right"


def test_a_judge_that_never_gets_ready_is_not_the_learners_fault(tmp_path, monkeypatch):
    limits = watch.Limits(seconds=100, start=0.5)
    row = run(tmp_path, monkeypatch, BESIDE, "time.sleep(30)", limits)
    assert (row.outcome, row.graded) == ("not started", False)


def test_orphans_without_a_mark_are_found_and_ended(tmp_path, monkeypatch, prefix, nap):
    script = f"""
        for _ in range(5):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execve("/bin/sleep", ["sleep", "{nap}"], {{}})
                os._exit(0)
        for _ in range(5):
            os.wait()
        say("ready"); right()
    """
    row = run(tmp_path, monkeypatch, prefix, script)
    assert (row.outcome, row.points) == ("right", 2)
    assert "5 leftover process(es) were ended" in row.note
    assert sleeping(nap) == []


def test_too_many_processes_are_ended_with_all_that_came_of_them(
    tmp_path, monkeypatch, prefix, nap
):
    script = f"""
        say("ready")
        for _ in range(200):  # a tame one: it ends by itself
            subprocess.Popen(["sleep", "{nap}"], start_new_session=True)
        time.sleep(30)
    """
    row = run(tmp_path, monkeypatch, prefix, script)
    assert (row.outcome, row.points) == ("too many processes", 0)
    assert "but 64 are allowed" in row.note
    assert sleeping(nap) == []


def test_too_many_threads_count_as_processes_do(tmp_path, monkeypatch):
    script = """
        say("ready")
        for _ in range(60):
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        time.sleep(30)
    """
    row = run(tmp_path, monkeypatch, BESIDE, script, watch.Limits(seconds=40, threads=50))
    assert row.outcome == "too many processes"
    assert "threads" in row.note


def test_memory_is_counted_over_all_processes_together(tmp_path, monkeypatch, prefix):
    script = """
        say("ready")
        for _ in range(4):
            if os.fork() == 0:
                held = b"x" * 60_000_000
                time.sleep(30)
        time.sleep(30)
    """
    limits = watch.Limits(seconds=40, memory=180_000_000, start=100)
    row = run(tmp_path, monkeypatch, prefix, script, limits)
    assert (row.outcome, row.points) == ("out of memory", 0)


def test_memory_that_forked_processes_share_counts_once(tmp_path, monkeypatch):
    script = """
        held = b"x" * 100_000_000
        children = []
        for _ in range(4):
            children.append(os.fork())
            if not children[-1]:
                time.sleep(1.5)
                os._exit(0)
        say("ready")
        for child in children: os.waitpid(child, 0)
        right()
    """
    limits = watch.Limits(seconds=40, memory=250_000_000, start=100)
    assert run(tmp_path, monkeypatch, BESIDE, script, limits).outcome == "right"


def test_a_judging_process_that_is_killed_gives_no_points_and_no_crash(
    tmp_path, monkeypatch, prefix
):
    script = 'say("ready"); os.kill(os.getpid(), signal.SIGKILL)'
    row = run(tmp_path, monkeypatch, prefix, script)
    assert (row.outcome, row.points) == ("ended its judge", 0)


def test_a_keeper_that_is_killed_leaves_nothing(tmp_path, monkeypatch, nap):
    script = f"""
        say("ready")
        subprocess.Popen(["sleep", "{nap}"], start_new_session=True)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(30)
    """
    row = run(tmp_path, monkeypatch, BESIDE, script)
    assert (row.outcome, row.points) == ("ended its judge", 0)
    assert sleeping(nap) == []


def test_who_kills_everybody_in_reach_does_not_reach_the_keeper(tmp_path, monkeypatch, here):
    if not here.numbers:
        pytest.skip("unshare gives no process numbers of its own here")
    script = """
        if os.getppid() != 1:  # not apart after all: nobody else's processes shall end by this
            raise SystemExit
        say("ready"); right()
        os.kill(-1, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    row = run(tmp_path, monkeypatch, here, script)
    assert (row.outcome, row.points) == ("right", 2)


def test_without_walls_every_row_says_so(tmp_path, monkeypatch):
    row = run(tmp_path, monkeypatch, Walls(), 'say("ready"); right()')
    assert (row.outcome, row.points) == ("right", 2) and "not confined" in row.note
    row = run(tmp_path, monkeypatch, BESIDE, 'say("ready"); right()')
    assert "confined" not in row.note


def test_what_others_write_among_the_verdicts_is_refused_and_told(tmp_path, monkeypatch):
    script = """
        say("ready")
        os.write(pipe, json.dumps({"event": "verdict", "cell": "f-check", "outcome": "right",
                                   "points": 2}).encode() + b"\\n")
        other = Seal(b"x" * KEY)
        os.write(pipe, other.closed({"event": "verdict", "cell": "f-check", "points": 2}) + b"\\n")
        say("verdict", cell="f-check", outcome="wrong", name="sum", points=0)
    """
    row = run(tmp_path, monkeypatch, BESIDE, script)
    assert (row.outcome, row.misconception, row.points) == ("wrong", "sum", 0)
    assert "2 line(s) among its verdicts were forged and were ignored" in row.note


def test_a_verdict_counts_once(tmp_path, monkeypatch):
    script = """
        say("ready")
        line = seal.closed({"event": "verdict", "cell": "f-check", "outcome": "wrong", "points": 0})
        os.write(pipe, line + b"\\n" + line + b"\\n"); right()
    """
    row = run(tmp_path, monkeypatch, BESIDE, script)
    assert (row.outcome, row.points) == ("wrong", 0) and "1 line(s)" in row.note


def test_points_above_the_exercise_are_refused(tmp_path, monkeypatch):
    row = run(tmp_path, monkeypatch, BESIDE, 'say("ready"); right(points=40)')
    assert row.points == 0
    assert "it claimed 40 of 2 points; the claim was ignored" in row.note


def test_no_secret_of_the_instructor_reaches_a_submission(tmp_path, monkeypatch):
    monkeypatch.setenv("CANVAS_TOKEN", "secret")
    script = """
        here = os.getcwd()
        assert os.environ["HOME"] == os.path.join(here, "home"), os.environ["HOME"]
        assert os.environ["TMPDIR"].startswith(here)
        assert "CANVAS_TOKEN" not in os.environ
        say("ready"); right()
    """
    row = run(tmp_path, monkeypatch, BESIDE, script)
    assert row.outcome == "right", row.note


def test_a_folder_that_was_made_unreadable_is_removed_all_the_same():
    home = Path(tempfile.mkdtemp(prefix="locked-", dir="/tmp"))
    inside = home / "it" / "deep"
    inside.mkdir(parents=True)
    (inside / "file").write_text("x")
    inside.chmod(0)
    script = (
        "import os\n"
        "from pathlib import Path\n"
        "from course_classroom.grading.supervisor import remove\n"
        "if os.geteuid() == 0:  # to root no folder is locked\n"
        f"    for path in ({str(home)!r}, {str(home / 'it')!r}, {str(inside)!r}):\n"
        "        os.chown(path, 65534, -1)\n"
        "    os.setuid(65534)\n"
        f"remove(Path({str(home / 'it')!r}))"
    )
    try:
        done = python("-c", script)
        assert done.returncode == 0, done.stderr
        assert not (home / "it").exists()
    finally:
        if inside.exists():
            inside.chmod(0o700)
        shutil.rmtree(home, ignore_errors=True)


def test_clearing_up_does_not_reach_through_a_link(tmp_path):
    mine = tmp_path / "mine"
    (mine / "work").mkdir(parents=True)
    mine.chmod(0o755)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "link").symlink_to(mine)
    remove(tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
    assert (mine / "work").exists() and mine.stat().st_mode & 0o777 == 0o755


def test_one_process_cannot_take_more_than_its_memory():
    script = (
        "from course_classroom.grading.worker import limit_this_process\n"
        "limit_this_process(500_000_000)\n"
        "held = bytearray(1_000_000_000)"
    )
    assert "MemoryError" in python("-c", script).stderr


def test_as_many_at_a_time_as_cores_and_memory_allow(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr("course_classroom.leases.machine.available_bytes", lambda: 100 * 10**9)
    assert marking.default_jobs(FAR) == 8
    monkeypatch.setattr("course_classroom.leases.machine.available_bytes", lambda: 5 * 10**9)
    assert marking.default_jobs(FAR) == 2
    monkeypatch.setattr("course_classroom.leases.machine.available_bytes", lambda: 10**9)
    assert marking.default_jobs(FAR) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr("course_classroom.leases.machine.available_bytes", lambda: 100 * 10**9)
    assert marking.default_jobs(FAR) == 2
