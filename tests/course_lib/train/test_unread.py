"""Nobody reads on: a pipe that was closed, a terminal that was. A run goes on, or ends in order."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import pytest

from course_lib.train import stop
from course_lib.train.report import Lines, Unbroken
from tests.course_lib.train.conftest import ALONE, COURSE, LIMIT, SMALL, environment
from tests.course_lib.train.test_program import losses, processes

pytestmark = pytest.mark.cpu("streams that are not read")


def test_what_nobody_reads_goes_nowhere_and_a_disk_that_fails_is_an_error(tmp_path):
    class Failing(io.StringIO):
        def write(self, text):
            raise OSError(self.number, os.strerror(self.number))

    with (tmp_path / "output").open("w") as file:
        stream = Failing()
        stream.number, stream.fileno = errno.EPIPE, file.fileno
        lines = Lines(stream)
        lines.say("lost")
        lines.say("lost too")
        file.write("nor is this read")
        file.flush()
        assert os.fstat(file.fileno()).st_rdev == os.stat(os.devnull).st_rdev
    assert (tmp_path / "output").read_text() == ""
    with (tmp_path / "log").open("w") as file:
        stream.fileno = file.fileno
        for stream.number in (errno.ENOSPC, errno.EIO):
            with pytest.raises(OSError, match=os.strerror(stream.number)):
                Unbroken(stream).write("x")


@pytest.mark.parametrize(
    "more", [[], pytest.param(["--json"], marks=pytest.mark.slow)], ids=["lines", "json"]
)
def test_a_run_goes_on_when_nobody_reads_its_output(tmp_path, more):
    """`… | head -1`; with --json, the one document is what nobody reads."""
    run = subprocess.Popen(
        [*ALONE, *SMALL, "--steps", "3", "--log-every", "1", "--out", str(tmp_path), *more],
        env=environment("slow:0.2:"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with run:
        if not more:
            assert "1 rank(s)" in run.stdout.readline()
        run.stdout.close()
        complaints = run.stderr.read()
    assert run.returncode == 0
    assert complaints == "" or (more and "step 3/3" in complaints and "Error" not in complaints)
    assert len(losses(tmp_path)) == 3 and (tmp_path / "checkpoints/latest").exists()


def hears_hangups() -> None:
    """As in a terminal, though the tests themselves may run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_a_terminal_that_closes_ends_a_run_after_the_step_with_a_checkpoint(tmp_path):
    """The kernel sends SIGHUP to the launcher, and all that is written fails from then on."""
    out, (reads, writes) = tmp_path / "run", pty.openpty()
    run = subprocess.Popen(
        [*COURSE, *SMALL, "--tp", "2", "--steps", "60", "--out", str(out)],
        env=environment("slow:0.3:", COLUMNS="80", TERM="xterm"),
        stdin=writes, stdout=writes, stderr=writes, start_new_session=True,
        preexec_fn=lambda: (fcntl.ioctl(0, termios.TIOCSCTTY, 0), hears_hangups()),
    )  # fmt: skip
    os.close(writes)
    limit = time.monotonic() + LIMIT
    while len(losses(out)) < 2:
        assert time.monotonic() < limit and run.poll() is None, os.read(reads, 100_000)
        time.sleep(0.05)
    os.close(reads)
    time.sleep(2 * stop.ONE)
    if run.poll() is None:
        run.send_signal(signal.SIGHUP)  # as a shell does, when it has heard of it
    assert run.wait(LIMIT) == 0
    steps = len(losses(out))
    assert 2 <= steps < 9 and not processes(str(out))
    assert (out / "checkpoints/latest").read_text() == f"step-{steps:06d}\n"


STOPS = """
import os, signal, sys, time
from course_lib.train.stop import Stop
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
stop = Stop()
for _ in range(2):
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.5)
print(stop.signal)
"""


@pytest.mark.parametrize(("how", "heard"), [("terminal", str(int(signal.SIGHUP))), ("nohup", None)])
def test_a_hangup_is_one_request_however_often_and_none_under_nohup(how, heard):
    done = subprocess.run(
        [sys.executable, "-c", STOPS, how], env=environment(), capture_output=True, text=True,
        timeout=LIMIT, check=False, preexec_fn=hears_hangups,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{heard}\n"
