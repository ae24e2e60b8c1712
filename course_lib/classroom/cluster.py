"""The ranks of one notebook: started when needed, repaired after a failure, never left behind.

Runs a cell on all ranks with a deadline, tells the first cause from what followed from it, and
keeps the ranks' variables wherever that is possible. Lesson 00 shows every one of these turns.
"""

from __future__ import annotations

import ast
import atexit
import base64
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from course_lib.classroom import runs
from course_lib.classroom.board import Board
from course_lib.classroom.hangs import Scene
from course_lib.classroom.room import check_world, environment
from course_lib.classroom.wire import Outcome, Rank

START_LIMIT = 60.0  # seconds, on a busy machine
STARTED_AGAIN = "The ranks were started again: their variables are gone."
GRACE = 2.5  # seconds that ranks have to come back after the deadline


@dataclass
class Ended:
    """A cell's end: an outcome for each rank, and what became of the groups."""

    outcomes: list[Outcome]
    scene: Scene
    notes: list[str] = field(default_factory=list)
    timed_out: bool = False
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        return any(outcome.status != "ok" for outcome in self.outcomes)


class Cluster:
    def __init__(self, world: int, *, notebook: str = "", idle_minutes: float = 30.0):
        self.world = world
        self.notebook = notebook
        self.idle_seconds = idle_minutes * 60
        self.ranks: list[Rank] = []
        self.folder: Path | None = None
        self.cells = 0
        self.backend = ""
        self._joins = 0
        self._used = time.monotonic()
        self._busy = threading.RLock()
        atexit.register(self.stop)

    @property
    def running(self) -> bool:
        return bool(self.ranks)

    def start(self, group_timeout: float = 20.0) -> None:
        check_world(self.world)
        with self._busy:
            runs.sweep()
            self.folder = folder = runs.new_folder()
            try:
                self.board = Board.create(folder / "board", self.world + 1)
                self.ranks = [
                    Rank(r, folder, environment(r, self.world, folder)) for r in range(self.world)
                ]
                runs.write_note(folder, [rank.process.pid for rank in self.ranks], self.notebook)
                take = "from course_lib.classroom.rank import sit_down; sit_down({!r}, {}, {})"
                self._everywhere(lambda r: take.format(str(folder), r, self.world), START_LIMIT)
                self._join(group_timeout)
            except BaseException:
                self.stop()
                raise
            self._used = time.monotonic()
        if self.idle_seconds > 0:
            threading.Thread(target=self._release_when_idle, daemon=True).start()

    def stop(self) -> None:
        """End every rank and remove its files. Safe to call at any time."""
        ranks, self.ranks = self.ranks, []
        folder, self.folder = self.folder, None
        for rank in ranks:
            rank.kill()
            rank.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def run(
        self,
        code: str,
        *,
        ranks: list[int] | None = None,
        deadline: float = 30.0,
        checked: bool = True,
        label: str = "this cell",
        first_line: int = 1,
        alive: Callable[[str], None] | None = None,
    ) -> Ended:
        """Run a cell on the ranks named (all by default) and wait for them, up to `deadline`."""
        with self._busy:
            try:
                about = {"checked": checked, "label": label, "first_line": first_line}
                return self._run(code, ranks, deadline, about, alive or (lambda text: None))
            finally:
                self._used = time.monotonic()

    def push(self, values: dict, ranks: list[int] | None = None) -> None:
        """Copy values into the ranks' variables."""
        text = base64.b64encode(pickle.dumps(values)).decode()
        code = (
            f"__import__('course_lib.classroom.values').classroom.values.take({text!r}, globals())"
        )
        self._everywhere(lambda r: code, 60.0, ranks)

    def pull(self, expression: str, ranks: list[int] | None = None) -> list:
        """The value of an expression on each rank, in rank order."""
        ask = f"__import__('course_lib.classroom.values').classroom.values.give({expression})"
        found = self._everywhere(lambda r: "", 60.0, ranks, values={"it": ask})
        values = []
        for outcome in found:
            it = outcome.values["it"]
            if it["status"] != "ok":
                raise RuntimeError(f"rank {outcome.rank}: {it['ename']}: {it['evalue']}")
            text = it["data"]["text/plain"].strip("'")
            values.append(pickle.loads(base64.b64decode(text)))
        return values

    def _run(self, code, ranks, deadline, about, alive) -> Ended:
        notes = self._replace_lost(0.7 * deadline)
        ranks = list(range(self.world)) if ranks is None else ranks
        self.cells += 1
        began = time.monotonic()
        cell = {
            "number": self.cells,
            "participants": ranks,
            "deadline": began + deadline,
            # Below the deadline, because nothing else frees a rank that waits inside gloo.
            "group_timeout": max(0.5, 0.7 * deadline),
            **about,
        }
        self.board.set_status(self.world, {"cell": self.cells})
        pending = {r: self.ranks[r].execute(code, cell=cell) for r in ranks}
        scene = Scene(self.board, self.cells, ranks, checked=about["checked"])
        ended = Ended(list(pending.values()), scene, notes)
        try:
            self._wait(pending, began, deadline, scene, alive)
            ended.timed_out = any(o.status == "running" for o in pending.values())
        except KeyboardInterrupt:
            ended.interrupted = True
        with _uninterrupted():
            if ended.timed_out or ended.interrupted:
                self._free(pending, scene, ended)
            self._read_board(pending, scene)
            if ended.failed:
                self._recover(ended, about["label"], 0.7 * deadline)
        return ended

    def _wait(self, pending, began, deadline, scene, alive) -> None:
        """Until all ranks ended, one died, or the deadline has passed."""
        asked = told = began
        while any(not o.ended() for o in pending.values()):
            now = time.monotonic()
            if now > began + deadline:
                return
            self._listen(pending, 50)
            if any(o.status == "died" for o in pending.values()):
                # Nobody waits for the dead: the rest is released at once.
                self._release(f"rank {_dead(pending)} died")
                self._drain(pending, GRACE)
                return
            open_ranks = [r for r, o in pending.items() if not o.ended()]
            if now - asked > 1.0 and open_ranks:
                asked = now
                scene.look(self.ranks, open_ranks)
                stuck = scene.deadlock(open_ranks)
                if stuck:
                    self._release(stuck)
            if now - told > 2.0 and open_ranks:
                told = now
                alive(scene.progress(open_ranks, now - began))

    def _listen(self, pending: dict[int, Outcome], patience_ms: int) -> None:
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

    def _release(self, reason: str) -> None:
        self.board.set_status(self.world, {"cell": self.cells, "release": reason})

    def _drain(self, pending: dict[int, Outcome], seconds: float) -> None:
        limit = time.monotonic() + seconds
        while any(not o.ended() for o in pending.values()) and time.monotonic() < limit:
            self._listen(pending, 50)

    def _free(self, pending, scene, ended) -> None:
        """After the deadline or an interrupt: look once more, then end every rank's wait."""
        open_ranks = [r for r, o in pending.items() if not o.ended()]
        scene.look(self.ranks, open_ranks)
        self._release("the deadline passed" if ended.timed_out else "the cell was interrupted")
        # Who waits on the board is free by now; an interrupt is for the rest.
        self._drain(pending, 0.2)
        for r, outcome in pending.items():
            if not outcome.ended():
                self.ranks[r].interrupt()
        self._drain(pending, GRACE)
        for outcome in pending.values():
            if not outcome.ended():
                outcome.status = "stuck"

    def _read_board(self, pending, scene) -> None:
        for r, outcome in pending.items():
            status = self.board.status(r)
            if status.get("cell") == self.cells and outcome.status == "error":
                outcome.where, outcome.source = status.get("where", ""), status.get("source", "")
                outcome.at = status.get("at", 0.0)
        scene.close(pending)

    def _recover(self, ended: Ended, label: str, group_timeout: float) -> None:
        """Back to ranks that work: as they are, with new groups, or started again."""
        lost = any(outcome.status in ("died", "stuck") for outcome in ended.outcomes)
        if not lost and ended.scene.groups_intact():
            ended.notes.append("The ranks' variables and groups are as they were.")
            return
        # After a failed collective on NCCL only new processes are sound.
        if not lost and self.backend == "gloo":
            try:
                ended.notes.extend(self._join(group_timeout, f"the failure in {label}"))
                return
            except RuntimeError:
                pass  # a rank that cannot join again is replaced with all others
        self.restart(group_timeout)
        ended.notes.append(STARTED_AGAIN)

    def _replace_lost(self, group_timeout: float) -> list[str]:
        """Replace all where one has ended since the last cell; what to tell the learner."""
        if not self.running:
            raise RuntimeError("the ranks are not running; start() them first")
        lost = [f"rank {rank.number} {rank.died()}" for rank in self.ranks if rank.died()]
        if not lost:
            return []
        self.restart(group_timeout)
        return [f"Since the last cell {' and '.join(lost)}. {STARTED_AGAIN}"]

    def restart(self, group_timeout: float = 20.0) -> None:
        self.stop()
        self.start(group_timeout)

    def _join(self, timeout: float, reason: str = "") -> list[str]:
        """Groups for all ranks, made anew; notes for the learner about what held the old ones."""
        self._joins += 1
        meet = self.folder / f"rendezvous-{self._joins}"
        code = f"__seat__.join({str(meet)!r}, {timeout!r}, {reason!r})"
        found = self._everywhere(
            lambda r: f"__holders__ = {code}",
            START_LIMIT,
            values={"it": "__holders__", "backend": "me.backend"},
        )
        self.backend = ast.literal_eval(found[0].values["backend"]["data"]["text/plain"])
        if not reason:
            return []
        holders: dict[tuple[str, str], list[int]] = {}
        for outcome in found:
            for holder in ast.literal_eval(outcome.values["it"]["data"]["text/plain"]):
                holders.setdefault(holder, []).append(outcome.rank)
        notes = ["The groups were made anew; the ranks' other variables are as they were."]
        if holders:
            named = ", ".join(f"`{name}` (made in {where})" for name, where in holders)
            notes.append(f"These hold a dead group, make them again before you use them: {named}.")
        return notes

    def _everywhere(self, code, limit: float, ranks=None, values=None) -> list[Outcome]:
        """Run our own code, which is expected to succeed, on the ranks named."""
        ranks = list(range(self.world)) if ranks is None else ranks
        pending = {r: self.ranks[r].execute(code(r), values=values) for r in ranks}
        self._drain(pending, limit)
        for r, outcome in pending.items():
            if outcome.status == "ok":
                continue
            how = (
                outcome.evalue
                if outcome.status == "died"
                else (f"{outcome.ename}: {outcome.evalue}" if outcome.ename else "did not answer")
            )
            log = self.ranks[r].log.read_text(errors="replace").strip().splitlines()[-8:]
            raise RuntimeError(
                f"rank {r} {how} (limit {limit:g} s)" + "".join(f"\n  {t}" for t in log)
            )
        return list(pending.values())

    def _release_when_idle(self) -> None:
        mine = self.ranks
        while self.ranks is mine:
            time.sleep(min(5.0, self.idle_seconds / 4))
            with self._busy:
                if self.ranks is mine and time.monotonic() - self._used > self.idle_seconds:
                    self.stop()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second press of the stop button must not break off the repair; it takes seconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _dead(pending: dict[int, Outcome]) -> int:
    return next(r for r, o in pending.items() if o.status == "died")
