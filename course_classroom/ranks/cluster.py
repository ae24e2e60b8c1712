"""Cells on the ranks of one notebook: each ends in every case, and each failure is explained.

A cluster runs a cell on all ranks with a deadline, separates the first cause from its consequences,
and keeps the ranks' variables if possible. Lesson 00.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from course_classroom.ranks.crew import START_LIMIT, Crew
from course_classroom.ranks.hangs import Scene
from course_classroom.ranks.lost_gpu import ADVICE, lost_gpu
from course_classroom.ranks.own_time import OwnTime
from course_classroom.ranks.wire import Outcome

STARTED_AGAIN = "The ranks were restarted, so their variables are gone."
FIRST_SIGN, NEXT_SIGN = 1.0, 0.5  # seconds until a cell's first sign of life, and until the next
GRACE = 4.0  # seconds for ranks to return after the deadline


# Receives the output so far, the ranks' activity, and its duration.
Alive = Callable[[Sequence[Outcome], list[str], OwnTime], None]


@dataclass
class Ended:
    """The end of a cell: an outcome for each rank, and the state of the groups."""

    outcomes: list[Outcome]
    scene: Scene
    notes: list[str] = field(default_factory=list)
    timed_out: bool = False
    interrupted: bool = False
    limit: float = 0.0  # its limit in seconds
    busy: str = ""  # if the ranks got too little processor time: the machine's load

    @property
    def failed(self) -> bool:
        """Return True if a rank failed, or if the cell ended late or with an unanswered call."""
        late = self.timed_out or self.interrupted
        return late or self.unanswered or any(o.status != "ok" for o in self.outcomes)

    @property
    def unanswered(self) -> bool:
        """Return True if a rank began a call without waiting, and another rank never made it."""
        return any(fact.kind == "unanswered" for fact in self.scene.facts)


class Cluster(Crew):
    """The ranks of a notebook, with the methods `start`, `run`, `push`, `pull` and `stop`."""

    cells = 0

    def run(
        self,
        code: str,
        *,
        ranks: list[int] | None = None,
        deadline: float = 30.0,
        checked: bool = True,
        label: str = "this cell",
        first_line: int = 1,
        work: float | None = None,
        alive: Alive | None = None,
    ) -> Ended:
        """Run a cell on the given ranks (default: all), and wait at most `deadline` seconds.

        The deadline limits the ranks' own time, and wall time to `own_time.SHARE` times as much.
        `work` is a shorter limit on a rank's processor time, which excludes waits.
        """
        with self._busy:
            try:
                # Lines are counted as in the editor, which includes the magic's line.
                if first_line > 1 and not code.lstrip().startswith("%%"):
                    code = "#\n" * (first_line - 1) + code
                about = {"checked": checked, "label": label}
                return self._run(code, ranks, (deadline, work), about, alive)
            finally:
                self._used = time.monotonic()

    def _run(self, code, ranks, limits, about, alive) -> Ended:
        deadline, work = limits
        notes = self._replace_lost(0.7 * deadline)
        ranks = list(range(self.world)) if ranks is None else ranks
        self.cells += 1
        began = time.monotonic()
        cell = {
            "number": self.cells,
            "participants": ranks,
            "deadline": began + deadline,
            # Below the deadline, because only this frees a rank that waits inside gloo.
            "group_timeout": max(0.5, 0.7 * deadline),
            **about,
        }
        self.board.set_status(self.world, {"cell": self.cells})
        pending = {r: self.ranks[r].execute(code, cell=cell) for r in ranks}
        scene = Scene(self.board, self.cells, ranks, checked=about["checked"])
        ended = Ended(list(pending.values()), scene, notes)
        spent = OwnTime([self.ranks[r].process.pid for r in ranks], deadline, work=work)
        try:
            ended.timed_out = self._wait(pending, spent, scene, alive)
        except KeyboardInterrupt:
            ended.interrupted = True
        with _uninterrupted():
            if not all(outcome.ended() for outcome in pending.values()):
                self._free(pending, scene, ended)
            self._read_board(pending, scene)
            # The board's report of calls and errors is right, however slow the machine is.
            doubtful = ended.timed_out or any(f.kind == "transport" for f in scene.facts)
            ended.limit = spent.nearer()[1]
            ended.busy = spent.busy() if doubtful and spent.starved() else ""
            late = self._left_behind(scene)
            ended.notes.extend(late)
            if ended.failed or scene.groups_destroyed() or late:
                self._recover(ended, about["label"], 0.7 * deadline, spoilt=bool(late))
        return ended

    def _wait(self, pending, spent, scene, alive) -> bool:
        """Wait until all ranks have ended or one has died; return True if the deadline is first."""
        asked, told = spent.began, spent.began + FIRST_SIGN - NEXT_SIGN
        while any(not o.ended() for o in pending.values()):
            now = time.monotonic()
            spent.look([self.ranks[r].process.pid for r, o in pending.items() if not o.ended()])
            if spent.over():
                return True
            self.listen(pending, 50)
            if any(o.status == "died" for o in pending.values()):
                # Ranks must not wait for a dead one, so the others are released at once.
                self._release(f"rank {_dead(pending)} died")
                self.drain(pending, GRACE)
                return False
            open_ranks = [r for r, o in pending.items() if not o.ended()]
            if now - asked > 1.0 and open_ranks:
                asked = now
                scene.look(self.ranks, open_ranks)
                stuck = scene.deadlock(open_ranks)
                if stuck:
                    self._release(stuck)
            if alive and now - told > NEXT_SIGN and open_ranks:
                told = now
                alive(list(pending.values()), scene.progress(open_ranks), spent)
        return False

    def _release(self, reason: str) -> None:
        self.board.set_status(self.world, {"cell": self.cells, "release": reason})

    def _free(self, pending, scene, ended) -> None:
        """Look again after the deadline or an interrupt, then end every rank's wait."""
        scene.freed = True
        open_ranks = [r for r, o in pending.items() if not o.ended()]
        scene.look(self.ranks, open_ranks)
        self._release("the cell was interrupted" if ended.interrupted else "the cell was ended")
        # Ranks that wait on the board are free now; an interrupt frees the others.
        self.drain(pending, 0.2)
        for r, outcome in pending.items():
            if not outcome.ended():
                self.ranks[r].interrupt()
        self.drain(pending, GRACE)
        for outcome in pending.values():
            if not outcome.ended():
                outcome.status = "stuck"

    def _read_board(self, pending, scene) -> None:
        for r, outcome in pending.items():
            status = self.board.status(r)
            if status.get("cell") == self.cells and outcome.status == "error":
                outcome.where, outcome.source = status.get("where", ""), status.get("source", "")
                outcome.at, outcome.trail = status.get("at", 0.0), status.get("trail", [])
        scene.close(pending)

    def _left_behind(self, scene: Scene) -> list[str]:
        """Describe the calls in which threads of this cell wait for ranks that will never join."""
        ranks = [r for r, status in scene.statuses.items() if status.get("late")]
        calls: dict[int, list[str]] = {}
        limit = time.monotonic() + 1.0  # a call that all ranks have made ends soon
        while ranks and time.monotonic() < limit:
            time.sleep(0.05)
            calls = dict(zip(ranks, self.pull("__seat__.threads.waiting()", ranks), strict=True))
            ranks = [r for r in ranks if calls[r]]
        if ranks:
            self.everywhere(lambda r: "__seat__.threads.give_up()", START_LIMIT, ranks)
        return [
            f"On rank {r} a thread that this cell started still waits in {calls[r][0]}. No rank "
            "will make that call. Wait for a thread in its own cell, with thread.join()."
            for r in ranks
        ]

    def _recover(self, ended: Ended, label: str, group_timeout: float, *, spoilt: bool) -> None:
        """Restore working ranks: leave them unchanged, give them new groups, or restart them."""
        lost = any(outcome.status in ("died", "stuck") for outcome in ended.outcomes)
        if any(lost_gpu(outcome.evalue) for outcome in ended.outcomes):
            lost = True
            ended.notes.append(ADVICE)
        if not lost and not spoilt and ended.scene.groups_intact():
            ended.notes.append("The ranks' variables and groups are unchanged.")
            return
        # After a failed collective on NCCL only new processes are safe.
        if not lost and self.backend == "gloo":
            try:
                ended.notes.extend(self.join(group_timeout, f"the failure in {label}"))
                return
            except RuntimeError:
                pass  # a rank that cannot join again is replaced together with all others
        self.restart(group_timeout)
        ended.notes.append(STARTED_AGAIN)

    def _replace_lost(self, group_timeout: float) -> list[str]:
        if not self.running:
            raise RuntimeError("the ranks are not running; start() them first")
        lost = [f"rank {rank.number} {rank.died()}" for rank in self.ranks if rank.died()]
        if not lost:
            return []
        self.restart(group_timeout)
        return [f"Since the last cell {' and '.join(lost)}. {STARTED_AGAIN}"]


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore further interrupts from the stop button during the repair, which takes seconds."""
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
