"""The referee of a cell: no rank enters a collective before all have come, with the same call.

It sees every collective that torch issues (DDP's, FSDP2's, DTensor's too), posts it on the board
and looks there for the others. So a mismatch or a missing rank becomes an error in milliseconds,
and the group stays usable: nobody was inside it. Lesson 00 shows it at work.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib.classroom.board import Board
from course_lib.classroom.calls import Call, read_call
from course_lib.dispatch import LightMode
from course_lib.dispatch.operations import NAMESPACES
from course_lib.dispatch.waits import WaitListener

PATIENCE = 0.5  # seconds; how long a call from C++ looks out for the others before it goes ahead


class CollectiveMismatch(RuntimeError):
    """The ranks called different things at the same place."""


class NeverCame(RuntimeError):
    """This rank waited for another that cannot come any more."""


class Released(RuntimeError):
    """The notebook ended this rank's wait: the deadline, an interrupt, a deadlock of all ranks."""


class Inbox:
    """What the other ranks have posted in the cell under way, read off the board call by call."""

    def __init__(self, board: Board):
        self.board = board
        self.cell = 0
        self._next: Counter[int] = Counter()
        self._calls: dict[int, dict[tuple[str, int], dict]] = defaultdict(dict)

    def open(self, cell: int) -> None:
        self.cell = cell
        self._calls.clear()

    def find(self, peer: int, key: str, number: int) -> dict | None:
        """The peer's call number `number` on the group `key`, or None where it has not come."""
        while (call := self.board.call(peer, self._next[peer] + 1)) is not None:
            self._next[peer] += 1
            self._keep(peer, call)
        newest = self.board.newest(peer)
        if newest > self._next[peer]:  # the board has forgotten some: take what it still has
            for at, call in self.board.calls(peer, self._next[peer]):
                if at > newest:  # posted while we read, and the one before it may have been missed
                    break
                self._next[peer] = at
                self._keep(peer, call)
        return self._calls[peer].get((key, number))

    def _keep(self, peer: int, call: dict) -> None:
        if call["cell"] == self.cell:
            self._calls[peer][call["key"], call["n"]] = call


@dataclass
class Appointment:
    """A call on this rank, and the ranks whose matching call it needs."""

    call: Call
    key: str
    number: int
    post: dict
    missing: set[int]
    entered: bool = False  # torch has been called: from here on the group depends on the others


class Referee(LightMode, WaitListener):
    """Active on a rank while a checked cell runs there."""

    def __init__(
        self,
        board: Board,
        inbox: Inbox,
        rank: int,
        *,
        cell: int,
        participants: list[int],
        deadline: float,
        dead: dict[str, str],
        find_line: Callable,
    ):
        super().__init__()
        self.board, self.inbox, self.rank = board, inbox, rank
        self.office = board.slots - 1  # the notebook's own slot
        self.cell, self.participants, self.deadline = cell, set(participants), deadline
        self.dead, self.find_line = dead, find_line
        # Calls on each group in this cell: unequal among its members means that one is owed.
        self.counts: Counter[str] = Counter()
        self._promised: dict[int, tuple[dist.Work, Appointment]] = {}
        inbox.open(cell)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace not in NAMESPACES:
            return func(*args, **kwargs)
        call = read_call(func, args, kwargs, self.dead)
        if call is None or len(call.members) < 2:
            return func(*args, **kwargs)
        meeting = self._announce(call)
        if not call.asynchronous:
            self.meet(meeting)
        else:
            # torch's C++ code waits where nobody can free it: give the others a chance to come.
            self.meet(meeting, patience=0.0 if call.from_python else PATIENCE)
            args = call.bounded(func, args, self.deadline - time.monotonic() - 1.0)
        meeting.entered = True
        result = func(*args, **kwargs)
        if call.asynchronous and call.from_python:
            self._promise(result, meeting)
        return result

    def before_wait(self, work: dist.Work) -> None:
        """A handle is about to be waited for: see that the others have come."""
        promised = self._promised.pop(id(work), None)
        if promised is not None:
            self.meet(promised[1])

    def meet(self, meeting: Appointment, patience: float = float("inf")) -> None:
        """Compare the call with the other ranks', waiting for those that have not made it yet."""
        began, pause, said = time.monotonic(), 0.0, False
        while True:
            for peer in sorted(meeting.missing):
                theirs = self.inbox.find(peer, meeting.key, meeting.number)
                if theirs is not None:
                    self._compare(meeting, peer, theirs)
                    meeting.missing.discard(peer)
            waited = time.monotonic() - began
            if not meeting.missing:
                break
            if patience > 0 or not meeting.call.asynchronous:
                self._still_possible(meeting)
            if waited >= patience:
                break
            if waited > 0.05 and not said:
                self._say("waiting", meeting)
                said = True
            # Yielding first keeps a check near 0.1 ms where all come at once.
            pause = 0.0 if waited < 0.002 else min(0.002, pause + 0.0002)
            time.sleep(pause)
        if said:
            self._say("running")

    def _announce(self, call: Call) -> Appointment:
        absent = [r for r in call.members if r not in self.participants]
        if absent:
            raise RuntimeError(
                f"{call.text} needs {_ranks(call.members)}, but this cell runs on "
                f"{_ranks(sorted(self.participants))} only; start the cell with a bare %%ranks"
            )
        if call.peer is None:
            key = f"{call.group_name}:{','.join(map(str, call.members))}"
            missing = {r for r in call.members if r != self.rank}
        else:
            key = f"{call.group_name}:{call.peer[0]}>{call.peer[1]}"
            missing = set(call.peer) - {self.rank}
        self.counts[key] += 1
        where, source = self.find_line(sys._getframe(2))
        post = {
            "cell": self.cell,
            "key": key,
            "n": self.counts[key],
            "text": call.text,
            "where": where,
            "source": source[:80],
            "async": call.asynchronous and call.peer is None,
            "compare": call.compare,
            "exchange": call.exchange,
        }
        self.board.post(self.rank, post)
        return Appointment(call, key, self.counts[key], post, missing)

    def _promise(self, result, meeting: Appointment) -> None:
        boxed = result[-1] if isinstance(result, tuple | list) else result
        if isinstance(boxed, torch.ScriptObject):
            # While this reference lives, Python gets the same object for the same handle.
            work = dist.Work.unbox(boxed)
            self._promised[id(work)] = (work, meeting)

    def _compare(self, meeting: Appointment, peer: int, theirs: dict) -> None:
        call = meeting.call
        same = theirs["compare"] == call.compare
        if same and call.exchange:  # what I send you has to be what you expect from me
            me, you = call.members.index(self.rank), call.members.index(peer)
            sent, expected = call.exchange
            their_sent, their_expected = theirs["exchange"]
            same = sent[you] == their_expected[me] and their_sent[me] == expected[you]
        if same:
            return
        self._withdraw(meeting)
        said = {self.rank: meeting.post, peer: theirs}
        raise CollectiveMismatch(
            "the ranks disagree about a collective: "
            + "; ".join(
                f"rank {r} calls {p['text']} in {p['where']}" for r, p in sorted(said.items())
            )
        )

    def _still_possible(self, meeting: Appointment) -> None:
        office = self.board.status(self.office)
        if office.get("cell") == self.cell and office.get("release"):
            self._withdraw(meeting)
            raise Released(office["release"])
        for peer in sorted(meeting.missing):
            status = self.board.status(peer)
            if status.get("cell") != self.cell or status.get("state") not in ("done", "failed"):
                continue
            # It may have posted just before it ended: look once more.
            if self.inbox.find(peer, meeting.key, meeting.number) is not None:
                continue
            did = "has finished the cell"
            if status["state"] == "failed":
                did = f"stopped with {status['error']}"
            self._withdraw(meeting)
            raise NeverCame(f"{meeting.call.text} waits for rank {peer}, which {did}")

    def _withdraw(self, meeting: Appointment) -> None:
        # A call from C++ leaves its caller half done (DDP's reducer): no trust in that group.
        if not meeting.entered and meeting.call.from_python:
            self.counts[meeting.key] -= 1

    def _say(self, state: str, meeting: Appointment | None = None) -> None:
        status = {"cell": self.cell, "state": state}
        if meeting is not None:
            status.update({k: meeting.post[k] for k in ("text", "where", "source", "key", "n")})
        self.board.set_status(self.rank, status)


def _ranks(members: list[int]) -> str:
    return ("rank " if len(members) == 1 else "ranks ") + ", ".join(map(str, members))
