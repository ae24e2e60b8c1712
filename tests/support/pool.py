"""Warm ranks for the tests: `pool.run(3, fn, *args)` calls fn(me, *args) on each of three ranks.

Processes are forked on first use from one that has imported torch (`course_lib.processes`), where
that is safe, and stay warm for the session. Every wait is bounded, the first error comes first, and
no process outlives the tests.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path

import pytest

from course_lib import processes as prepared
from tests.support.failures import Failure, RanksFailed, how_it_ended, told

MODULES = ("tests.support.pool_worker",)  # what a rank imports before it is forked
ROOT = Path(__file__).resolve().parents[2]
START_LIMIT = 120.0  # seconds; importing torch on a busy machine takes a while
GROUP_SHARE = 2 / 3  # of a call's timeout: gloo gives up first, and with a traceback
GRACE = 6.0  # seconds that the other ranks get to end after one has failed


class Rank:
    """The pool's side of one rank: its process, its pipe, its output."""

    def __init__(self, rank: int, world: int, folder: Path, env: Mapping[str, str]):
        self.rank = rank
        self.output = folder / f"rank-{rank}.txt"
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.support.pool_worker", str(theirs.fileno())]
        with self.output.open("wb") as sink:
            wanted = prepared.Wanted(
                "tests.support.pool_worker:forked",
                [rank, world, str(folder)],
                # What made it removes the folder too, if the tests' process is killed.
                env={**os.environ, **_rank_environment(), **env, "COURSE_RUN_DIR": str(folder)},
                output=sink.fileno(),
                given=[theirs.fileno()],
                folder=str(ROOT),
            )
            # Every group has a rank with another hash secret, as separate starts would give it.
            self.process = prepared.start(
                wanted,
                [*command, str(rank), str(world), str(folder)],
                modules=MODULES,
                odd=rank == world - 1,
            )
        theirs.close()
        self.pipe = Connection(ours.detach())
        self._read = 0

    def new_output(self) -> str:
        """What the rank has printed since the last time this was asked."""
        with self.output.open("rb") as file:
            file.seek(self._read)
            raw = file.read()
        self._read += len(raw)
        return raw.decode(errors="replace")

    def stack(self) -> str:
        """Where the rank is now. A rank that cannot answer is asked by a signal."""
        with contextlib.suppress(OSError, EOFError):
            self.pipe.send(("stacks",))
            limit = time.monotonic() + 2
            while self.pipe.poll(max(0.0, limit - time.monotonic())):
                kind, *content = self.pipe.recv()
                if kind == "stacks":
                    return content[0]
            self.new_output()
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(0.3)
        return self.new_output() or "(the rank does not say where it is)\n"

    def death(self) -> Failure | None:
        code = self.process.poll()
        if code is None:
            return None
        how = how_it_ended(code)
        printed = self.new_output().strip()
        detail = f"rank {self.rank} {how}" + (f"; it printed:\n{printed}" if printed else "")
        return Failure(self.rank, time.monotonic(), f"the process {how}", detail)

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()


class Team:
    """All ranks of one world."""

    def __init__(self, world: int, folder: Path, env: Mapping[str, str]):
        self.world, self.folder = world, folder
        self.group_timeout = 0.0  # seconds; 0 while there is no group
        self.rendezvous = 0
        self.made = 0  # tensors that the last call has put on a GPU
        self.ranks = [Rank(rank, world, folder, env) for rank in range(world)]
        self._all("start", START_LIMIT, "ready")

    def join(self, group_timeout: float) -> None:
        """Make the default group anew."""
        self.group_timeout = 0.0
        self.rendezvous += 1
        path = self.folder / f"rendezvous-{self.rendezvous}"  # later groups meet there too
        self._send("join", str(path), group_timeout)
        self._all("a new group", START_LIMIT, "joined")
        self.group_timeout = group_timeout

    def call(self, fn: Callable, args: tuple, timeout: float, seed: int) -> list:
        __tracebackhide__ = True
        name = f"{fn.__module__}.{fn.__qualname__} at world {self.world}"
        file = sys.modules[fn.__module__].__file__
        packed = pickle.dumps(args)
        if self.group_timeout != timeout * GROUP_SHARE:
            self.join(timeout * GROUP_SHARE)
        self._send("call", fn.__module__, file, fn.__qualname__, packed, seed)
        self.made = 0
        try:
            answers = self._all(name, timeout, "done")
        finally:
            for one in self.ranks:
                for line in one.new_output().splitlines():
                    print(f"[rank {one.rank}] {line}")
        self.made = sum(made for *_, made in answers)
        if not all(clean for _, clean, *_ in answers):
            self.group_timeout = 0.0
        self._send("tidy")
        return [pickle.loads(packed) for packed, *_ in answers]

    def end(self) -> None:
        for one in self.ranks:
            with contextlib.suppress(OSError):
                one.pipe.send(("end",))
        limit = time.monotonic() + 2
        for one in self.ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, limit - time.monotonic()))
            one.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _send(self, *message: object) -> None:
        for one in self.ranks:
            with contextlib.suppress(OSError):  # a dead rank is noticed, and named, in _all
                one.pipe.send(message)

    def _all(self, what: str, timeout: float, expected: str) -> list[tuple]:
        """Each rank's answer in rank order, or the failure that came first."""
        __tracebackhide__ = True
        began = time.monotonic()
        limit = began + timeout
        answers: dict[int, tuple] = {}
        failures: dict[int, Failure] = {}
        pending = {one.pipe: one for one in self.ranks}
        while pending and time.monotonic() < limit:
            # A rank that dies closes its end of the pipe, which is news too.
            for pipe in wait(list(pending), min(0.25, max(0.0, limit - time.monotonic()))):
                one = pending[pipe]
                try:
                    kind, *content = pipe.recv()
                except (EOFError, OSError):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        one.process.wait(2)
                    kind, content = "failed", [one.death() or _silent(one.rank)]
                if kind == "failed":
                    failures[one.rank] = content[0]
                    self.made += sum(content[1:])
                elif kind == expected:
                    answers[one.rank] = tuple(content)
                else:
                    continue
                del pending[pipe]
            for one in list(pending.values()):
                if one.process.poll() is not None and not one.pipe.poll():
                    failures[one.rank] = one.death()
                    del pending[one.pipe]
            if any(not failure.consequence for failure in failures.values()):
                limit = min(limit, max(f.seconds for f in failures.values()) + GRACE)
        if not pending and not failures:
            return [answers[one.rank] for one in self.ranks]
        self.group_timeout = 0.0
        remarks = {
            rank: f"had returned, {answer[2] - began:.2f} s into the call"
            for rank, answer in answers.items()
            if expected == "done"
        }
        stacks = {one.rank: one.stack() for one in pending.values()}
        self._wait_for_the_leaving(failures)
        if stacks or not self.alive():
            for one in self.ranks:
                one.process.kill()
                one.process.wait()
        raise told(what, timeout, failures, remarks, stacks)

    def _wait_for_the_leaving(self, failures: Mapping[int, Failure]) -> None:
        """A rank that has failed leaves its groups. One whose group something holds says so and
        ends: then the team is another's."""
        limit = time.monotonic() + GRACE
        for one in self.ranks:
            with contextlib.suppress(EOFError, OSError, subprocess.TimeoutExpired):
                if one.rank not in failures or not one.pipe.poll(
                    max(0.0, limit - time.monotonic())
                ):
                    continue
                if one.pipe.recv()[0] == "held":
                    one.process.wait(2)

    def alive(self) -> bool:
        return all(one.process.poll() is None for one in self.ranks)


class Pool:
    """Teams of ranks by world size, and by extra environment where a test asks for some."""

    def __init__(self, timeout: float = 30.0) -> None:
        self.timeout = timeout  # seconds, of a call that states none
        self.hidden: Mapping[str, str] = {}  # the environment of ranks that are to see no GPU
        self.made = 0  # tensors that ranks have put on a GPU
        self._folder = Path(tempfile.mkdtemp(prefix="course-pool-"))
        self._teams: dict[tuple, Team] = {}

    def run(
        self,
        world: int,
        fn: Callable,
        *args: object,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        seed: int | None = None,
        alone: bool = False,
    ) -> list:
        """fn(me, *args) on every rank of a started group; the results in rank order.

        With `alone` the processes are new and end with the call: for a library that keeps groups
        in globals of its own, which are dead by the next test.
        """
        __tracebackhide__ = True
        module = sys.modules.get(fn.__module__)
        if getattr(module, fn.__name__, None) is not fn:
            raise TypeError(f"{fn!r} has to be a function at the top of a module: ranks import it")
        if seed is None:
            seed = zlib.crc32(_test_name().encode())
        env = {**self.hidden, **(env or {})}
        key = (world, *sorted(env.items()), *(["alone"] if alone else []))
        try:
            return self._team(key, world, env).call(fn, args, timeout or self.timeout, seed)
        except RanksFailed as failed:
            team = self._teams.get(key)
            if team is not None and not team.alive():
                self._drop(key)
            if failed.first.skipped:
                pytest.skip(f"rank {failed.first.rank}: {failed.first.summary}")
            raise
        except BaseException:
            self._drop(key)  # an interrupt or a time limit: nobody knows where these ranks are
            raise
        finally:
            if key in self._teams:
                self.made += self._teams[key].made
            if alone:
                self._drop(key)

    def raises(
        self, world: int, fn: Callable, *args: object, match: str = "", **options: object
    ) -> list[str | None]:
        """Run fn, demand that it fails with `match` in its first error; what each rank said."""
        __tracebackhide__ = True
        try:
            self.run(world, fn, *args, **options)
        except RanksFailed as failed:
            if not re.search(match, failed.first.detail):
                raise
            said = {failure.rank: failure.summary for failure in failed.failures}
            return [said.get(rank) for rank in range(world)]
        pytest.fail(f"{fn.__qualname__} raised on no rank of {world}")

    def pids(self, world: int) -> list[int]:
        """The processes of a world's ranks; none if it has not been used yet."""
        team = self._teams.get((world,))
        return [one.process.pid for one in team.ranks] if team else []

    def close(self) -> None:
        for key in list(self._teams):
            self._drop(key)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _team(self, key: tuple, world: int, env: Mapping[str, str]) -> Team:
        team = self._teams.get(key)
        if team is not None and team.alive():
            return team
        self._drop(key)
        if env:  # processes with an environment of their own are kept one team at a time
            for other in [other for other in self._teams if len(other) > 1]:
                self._drop(other)
        folder = Path(tempfile.mkdtemp(dir=self._folder, prefix=f"world-{world}-"))
        self._teams[key] = Team(world, folder, env)
        return self._teams[key]

    def _drop(self, key: tuple) -> None:
        team = self._teams.pop(key, None)
        if team is not None:
            team.end()


def _rank_environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _test_name() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "no test").rsplit(" ", 1)[0]


def _silent(rank: int) -> Failure:
    said = f"rank {rank} closed its pipe but has not ended"
    return Failure(rank, time.monotonic(), said, said)
