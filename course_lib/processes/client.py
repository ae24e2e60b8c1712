"""The starter's side: a prepared process that forks children, and a handle for each child.

A handle has the interface of `subprocess.Popen` for a started process: `pid`, `poll`, `wait`,
`kill`, `send_signal`, `returncode`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.processes import channel

READY_LIMIT = 120.0  # seconds for the imports, on a busy machine
FORK_LIMIT = 30.0
GONE = -signal.SIGKILL  # a child's exit code if no process is left to report it
_REMEDY = "Close other notebooks, end stray ranks (`course stop`), or raise the limit (`ulimit -u`)"
NUMPY_THREADS = "OPENBLAS_NUM_THREADS"
_ONE_THREAD = ("OMP_NUM_THREADS", NUMPY_THREADS, "MKL_NUM_THREADS")


class NotPrepared(RuntimeError):
    """The error if no child can be forked, for example after a failed import or GPU use."""


@dataclass
class Wanted:
    """The description of a child: the function that it calls, and its environment."""

    target: str  # "package.module:function"
    arguments: list  # JSON
    env: dict[str, str]
    output: int  # a descriptor for its output
    given: list[int] = field(default_factory=list)  # descriptors, appended to the arguments
    folder: str = field(default_factory=os.getcwd)
    errors: int | None = None  # a descriptor for errors, if different

    def descriptors(self) -> list[int]:
        """Return the child's descriptors in the order in which it receives them."""
        return [self.output, self.output if self.errors is None else self.errors, *self.given]


class Child:
    """One forked process."""

    def __init__(self, pid: int, status: int):
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._told = b""
        self._reading = threading.Lock()
        try:
            self._handle = os.pidfd_open(pid)
        except OSError:  # it has already ended and was reaped
            self._handle = -1

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the child lives."""
        with self._reading:
            if self.returncode is None and _readable(self._status, 0):
                self._take()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        limit = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            _readable(self._status, 1.0 if left is None else min(1.0, left))
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None and self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _take(self) -> None:
        part = os.read(self._status, 64)
        self._told += part
        if part and not self._told.endswith(b"\n"):
            return
        # No report: the prepared process was killed, and this child with it or soon after.
        self.returncode = int(self._told) if self._told.strip() else GONE
        if not self._told and self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        for name in ("_status", "_handle"):
            number = getattr(self, name, -1)
            setattr(self, name, -1)
            if number >= 0:
                os.close(number)

    def __del__(self) -> None:
        self.close()


class Preparer:
    """A prepared process, started at once; the first request for a child waits for it."""

    def __init__(self, modules: tuple[str, ...], hash_seed: int | None = None):
        self._asking = threading.Lock()
        self._ready = False
        # Independent of the working directory, so that no file in it can replace a module.
        places = str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")
        self.env = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1")}
        self.env["PYTHONPATH"] = os.pathsep.join(filter(None, places))
        if hash_seed is not None:
            self.env["PYTHONHASHSEED"] = str(hash_seed)
        self.end, theirs = socket.socketpair()
        command = [sys.executable, "-m", "course_lib.processes.preparer", str(theirs.fileno())]
        nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(os.getpid()), *modules],
                env=self.env,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that Ctrl-C in a terminal reaches only the starter
                **nowhere,
            )

    def alive(self) -> bool:
        return self.process.poll() is None

    def child(self, wanted: Wanted) -> Child:
        """Fork a child; raise NotPrepared if that is unsafe, and OSError if the system refuses."""
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            with self._asking:
                self._settle()
                with _deferred():  # an answer left unread would be taken for the next one
                    self._send(asked(wanted), [write, *wanted.descriptors()])
                    answer = self._receive(FORK_LIMIT)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        if "pid" in answer:
            return Child(answer["pid"], read)
        os.close(read)
        if "unsafe" in answer:
            raise NotPrepared(answer["unsafe"])
        raise OSError(
            answer["errno"], f"no process could be forked: {answer['refused']}. {_REMEDY}"
        )

    def close(self) -> None:
        """End the prepared process, and thereby every child that is still alive."""
        self.end.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_ready(self) -> None:
        """Wait for the imports; raise NotPrepared if they failed."""
        with self._asking:
            self._settle()

    def _settle(self) -> None:
        if self._ready:
            return
        told = self._receive(READY_LIMIT)
        if told["unsafe"]:
            raise NotPrepared(told["unsafe"])
        self._ready = True

    def _send(self, message: dict, descriptors: list[int]) -> None:
        try:
            channel.send(self.end, message, descriptors)
        except (channel.Closed, OSError) as error:
            raise NotPrepared(f"the prepared process is gone ({error})") from None

    def _receive(self, limit: float) -> dict:
        self.end.settimeout(limit)
        try:
            return channel.receive(self.end)[0]
        except TimeoutError:
            self.process.kill()  # a late answer would be taken for the answer to a later request
            raise NotPrepared(f"the prepared process did not answer in {limit:g} s") from None
        except (channel.Closed, OSError):
            how = self.process.poll()
            told = "" if how is None else f" (exit code {how})"
            raise NotPrepared(f"the prepared process is gone{told}") from None


def asked(wanted: Wanted) -> dict:
    """Build the message for a child: its description and the settings that it inherits."""
    return {
        "target": wanted.target,
        "arguments": wanted.arguments,
        "env": wanted.env,
        "folder": wanted.folder,
        "umask": _umask(),
        "limits": _limits(),
    }


@contextlib.contextmanager
def _deferred() -> Iterator[None]:
    """Delay the learner's interrupt until the block has ended, which takes milliseconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[tuple] = []
    before = signal.signal(signal.SIGINT, lambda *call: heard.append(call))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard and callable(before):
        before(*heard[0])


def _readable(number: int, seconds: float) -> bool:
    return number >= 0 and bool(select.select([number], [], [], seconds)[0])


def _umask() -> int:
    """Return this process's umask, without changing it if the kernel reports it."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077


def _limits() -> dict[str, tuple[int, int]]:
    """Return this process's limits, which a child inherits as a started process would."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}
