"""The starter's side: one prepared process, asked for children, and each child as a handle to it.

A handle does what `subprocess.Popen` does for a started process: `pid`, `poll`, `wait`, `kill`,
`send_signal`, `returncode`.
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
GONE = -signal.SIGKILL  # what a child is said to have ended with when nobody is left to tell
_REMEDY = "Close other notebooks, end stray ranks (`course stop`), or raise the limit (`ulimit -u`)"
NUMPY_THREADS = "OPENBLAS_NUM_THREADS"
_ONE_THREAD = ("OMP_NUM_THREADS", NUMPY_THREADS, "MKL_NUM_THREADS")


class NotPrepared(RuntimeError):
    """No child can be forked, and why: its import failed, a second thread, a GPU."""


@dataclass
class Wanted:
    """What a child is to be: the function that it calls, and what surrounds it."""

    target: str  # "package.module:function"
    arguments: list  # JSON
    env: dict[str, str]
    output: int  # a descriptor that takes what it prints
    given: list[int] = field(default_factory=list)  # descriptors, appended to the arguments
    folder: str = field(default_factory=os.getcwd)
    errors: int | None = None  # one that takes its complaints, where that is another

    def descriptors(self) -> list[int]:
        """Those of the child, in the order in which it takes them."""
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
        except OSError:  # it has ended already and was reaped
            self._handle = -1

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
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
        # Without a word: the prepared process was killed, and this one with it or soon after.
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
    """One prepared process; started at once, waited for when the first child is wanted."""

    def __init__(self, modules: tuple[str, ...], hash_seed: int | None = None):
        self._asking = threading.Lock()
        self._ready = False
        # Not a folder of the working directory: nothing in it may stand in for a module.
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
                start_new_session=True,  # Ctrl-C in a terminal is for the one who started it
                **nowhere,
            )

    def alive(self) -> bool:
        return self.process.poll() is None

    def child(self, wanted: Wanted) -> Child:
        """Fork a child. NotPrepared where that is not possible; OSError where it is refused."""
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            with self._asking:
                self._settle()
                with _deferred():  # an answer that nobody took would be the next one's
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
        """End the prepared process, and with it every child that still lives."""
        self.end.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_ready(self) -> None:
        """Wait for the imports; NotPrepared where they failed."""
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
            self.process.kill()  # whatever it still says would answer another question
            raise NotPrepared(f"the prepared process did not answer in {limit:g} s") from None
        except (channel.Closed, OSError):
            how = self.process.poll()
            told = "" if how is None else f" (exit code {how})"
            raise NotPrepared(f"the prepared process is gone{told}") from None


def asked(wanted: Wanted) -> dict:
    """What a child is told: what is wanted, and what a started process would have of this one."""
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
    """Put the learner's interrupt off until the block has ended, which takes milliseconds."""
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
    """This process's umask, without changing it where the kernel tells."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077


def _limits() -> dict[str, tuple[int, int]]:
    """This process's limits: a child has those of the one who asks, as a started process has."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}
