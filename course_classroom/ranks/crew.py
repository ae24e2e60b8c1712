"""The processes of one notebook's ranks: their start, control, process groups, and complete end.

`cluster.py` runs a learner's cells on them. The course's own code runs through `everywhere`, which
expects success. Lesson 00 introduces ranks.
"""

from __future__ import annotations

import atexit
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import zmq

from course_classroom import leases
from course_classroom.leases.share import check_world
from course_classroom.ranks import runs, values
from course_classroom.ranks.agreement import named_holders
from course_classroom.ranks.board import Board
from course_classroom.ranks.own_time import OwnTime
from course_classroom.ranks.wire import Outcome, Rank
from course_lib.processes.leftovers import end_all

START_LIMIT = 60.0  # seconds, on a busy machine
_VALUES = "__import__('course_classroom.ranks.values').ranks.values"


class Crew:
    def __init__(
        self,
        world: int,
        *,
        notebook: str = "",
        idle_minutes: float = 30.0,
        env: Mapping[str, str] | None = None,
        odd: tuple[int, ...] = (),
    ):
        self.world = world
        self.odd = odd  # the ranks with a different hash secret, if the others share one
        self.env = dict(env or {})  # overrides every rank's variables
        self.notebook = notebook
        self.idle_seconds = idle_minutes * 60
        self.ranks: list[Rank] = []
        self.folder: Path | None = None
        self.lease: leases.Lease | None = None
        self.backend = ""
        self._joins = 0
        self._used = time.monotonic()
        self._busy = threading.RLock()
        atexit.register(self.stop)

    @property
    def running(self) -> bool:
        return bool(self.ranks)

    def start(self, group_timeout: float = 20.0) -> None:
        env = os.environ | self.env
        check_world(self.world, env)
        with self._busy:
            self.lease = leases.take(self.world, notebook=self.notebook, env=env)
            self._start_ranks(group_timeout)

    def stop(self) -> None:
        """End every rank, remove its files, and return the lease. This is safe at any time."""
        self._end_ranks()
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.give_back()

    def restart(self, group_timeout: float = 20.0) -> None:
        """Start new processes on the old processes' resources, without releasing the lease."""
        self._end_ranks()
        if self.lease is None:
            self.start(group_timeout)
            return
        with self._busy:
            self._start_ranks(group_timeout)

    def _start_ranks(self, group_timeout: float) -> None:
        try:
            runs.sweep()
            self.folder = folder = runs.new_folder(self.notebook)
            self.board = Board.create(folder / "board", self.world + 1)
            for r in range(self.world):
                env = environment(r, self.world, folder, self.lease, self.env)
                self.ranks.append(Rank(r, folder, env, odd=r in self.odd))
            self.lease.bound_memory([rank.process.pid for rank in self.ranks])
            take = "from course_classroom.ranks.rank import sit_down; sit_down({!r}, {}, {})"
            self._await_kernels(START_LIMIT)
            self.everywhere(lambda r: take.format(str(folder), r, self.world), START_LIMIT)
            self.join(group_timeout)
        except BaseException:
            self.stop()
            raise
        self._used = time.monotonic()
        if self.idle_seconds > 0:
            threading.Thread(target=self._release_when_idle, daemon=True).start()

    def _await_kernels(self, limit: float) -> None:
        """Wait until each kernel knows its listener or has died; the next call reports a death."""
        spent = OwnTime(pids := [rank.process.pid for rank in self.ranks], limit)
        poller = zmq.Poller()
        for rank in self.ranks:
            poller.register(rank.iopub, zmq.POLLIN)
        while not spent.over():
            spent.look(pids)
            if all(rank.greeted() or rank.died() for rank in self.ranks):
                return
            poller.poll(50)

    def _end_ranks(self) -> None:
        ranks, self.ranks = self.ranks, []
        folder, self.folder = self.folder, None
        if folder is not None:
            # Processes that a cell has started or forked end with its rank, in whatever session.
            end_all([rank.process.pid for rank in ranks], [str(folder)])
        for rank in ranks:
            rank.kill()
            rank.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def push(self, items: dict, ranks: list[int] | None = None) -> None:
        code = f"{_VALUES}.take({values.pack(items)!r}, globals())"
        self.everywhere(lambda r: code, 60.0, ranks)

    def pull(self, expression: str, ranks: list[int] | None = None) -> list:
        """Return the value of an expression on each rank, in rank order, as plain data."""
        ask = f"{_VALUES}.give({expression})"
        outcomes = self.everywhere(lambda r: "", 60.0, ranks, values={"it": ask})
        return [_pulled(outcome) for outcome in outcomes]

    def join(self, timeout: float, reason: str = "") -> list[str]:
        """Create new groups for all ranks; return notes for the learner on users of old groups."""
        self._joins += 1
        meet = self.folder / f"rendezvous-{self._joins}"
        code = f"__seat__.join({str(meet)!r}, {timeout!r}, {reason!r})"
        self.everywhere(lambda r: f"__holders__ = {code}", START_LIMIT)
        found = self.pull("[me.backend, __holders__]")
        self.backend = found[0][0]
        if not reason:
            return []
        holders = dict.fromkeys(one for _, mine in found for one in mine)  # each named once
        notes = ["New groups were created; the ranks' other variables are unchanged."]
        if holders:
            named = named_holders(list(holders))
            notes.append(f"These hold a dead group. Create them again before use: {named}.")
        return notes

    def everywhere(
        self,
        code: Callable[[int], str],
        limit: float,
        ranks: list[int] | None = None,
        values: dict[str, str] | None = None,
    ) -> list[Outcome]:
        """Run the course's own code, which must succeed, on the given ranks (default: all)."""
        ranks = list(range(self.world)) if ranks is None else ranks
        pending = {r: self.ranks[r].execute(code(r), values=values) for r in ranks}
        spent = self.drain(pending, limit)
        for r, outcome in pending.items():
            if outcome.status == "ok":
                continue
            how = (
                outcome.evalue
                if outcome.status == "died"
                else (f"{outcome.ename}: {outcome.evalue}" if outcome.ename else "did not answer")
            )
            log = self.ranks[r].log.read_text(errors="replace").strip().splitlines()[-8:]
            busy = f"; {spent.busy()}" if spent.starved() else ""
            raise RuntimeError(
                f"rank {r} {how} (limit {limit:g} s{busy})" + "".join(f"\n  {t}" for t in log)
            )
        return list(pending.values())

    def drain(self, pending: dict[int, Outcome], seconds: float) -> OwnTime:
        """Listen until all pending ranks have ended, up to a limit of the ranks' own time."""
        spent = OwnTime([self.ranks[r].process.pid for r in pending], seconds)
        while not spent.over() and any(not o.ended() for o in pending.values()):
            self.listen(pending, 50)
            spent.look([self.ranks[r].process.pid for r, o in pending.items() if not o.ended()])
        return spent

    def listen(self, pending: dict[int, Outcome], patience_ms: int) -> None:
        """Receive the ranks' messages; a process that ended counts as died."""
        poller = zmq.Poller()
        for r, outcome in pending.items():
            if not outcome.ended():
                poller.register(self.ranks[r].shell, zmq.POLLIN)
                poller.register(self.ranks[r].iopub, zmq.POLLIN)
        poller.poll(patience_ms)
        for r, outcome in pending.items():
            if outcome.ended():
                continue
            self.ranks[r].listen()
            how = self.ranks[r].died()
            if how and not outcome.ended():
                outcome.status, outcome.evalue, outcome.at = "died", how, time.monotonic()

    def _release_when_idle(self) -> None:
        mine = self.ranks
        while self.ranks is mine:
            time.sleep(min(5.0, self.idle_seconds / 4))
            with self._busy:
                if self.ranks is mine and time.monotonic() - self._used > self.idle_seconds:
                    self.stop()


def _pulled(outcome: Outcome) -> object:
    """Return the requested value of a rank, or raise a RuntimeError with the reason."""
    reply = outcome.values["it"]
    if reply["status"] != "ok":
        cause = "" if reply["ename"] == "CannotTravel" else f"{reply['ename']}: "
        raise RuntimeError(f"rank {outcome.rank}: {cause}{reply['evalue']}")
    try:
        return values.unpack(reply["data"]["text/plain"].strip("'"))
    except (KeyError, ValueError) as error:
        raise RuntimeError(f"rank {outcome.rank}: {error}") from None


def environment(
    rank: int, world: int, folder: Path, lease: leases.Lease, own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a rank's environment: its identity for libraries, `own`, and its limits."""
    env = dict(os.environ)
    for name in ("MASTER_ADDR", "MASTER_PORT"):  # left by a launcher; no port is used here
        env.pop(name, None)
    package = str(Path(__file__).resolve().parents[2])
    env.update(
        COURSE_RUN_DIR=str(folder),
        COURSE_PARENT=str(os.getpid()),
        IPYTHONDIR=str(folder / "ipython"),
        PYTHONPATH=os.pathsep.join(p for p in (package, env.get("PYTHONPATH")) if p),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        TORCH_FR_BUFFER_SIZE=env.get("TORCH_FR_BUFFER_SIZE", "200"),
        MPLBACKEND="module://matplotlib_inline.backend_inline",
    )
    return env | dict(own or {}) | lease.variables
