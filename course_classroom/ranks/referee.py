"""The referee of a cell: a rank enters a collective only after all ranks make the same call.

It sees every collective of torch (including DDP, FSDP2 and DTensor), posts it on the board and
looks there for the other ranks' calls. A mismatch or a missing rank becomes an error in
milliseconds, and the group stays usable because no rank was inside it. Lesson 00.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist

from course_classroom.ranks import any_source, stacks
from course_classroom.ranks.any_source import ANYTHING, AnySource
from course_classroom.ranks.board import Board, Inbox
from course_classroom.ranks.calls import Call, read_call
from course_lib.ledger.torch_calls import LightMode
from course_lib.ledger.torch_calls.operations import NAMESPACES
from course_lib.ledger.torch_calls.waits import WaitListener

ENDED = ("done", "failed")
PATIENCE = 0.5  # seconds for which a call from C++ waits for the others before it continues


class CollectiveMismatch(RuntimeError):
    """An error for ranks that make different calls at the same place."""


class NeverCame(RuntimeError):
    """An error for a wait for a rank that can no longer make the call."""


class Released(RuntimeError):
    """An error when the notebook ends a wait after a deadline, an interrupt or a deadlock."""


@dataclass
class Appointment:
    """A call on this rank, and the ranks whose matching call it needs."""

    call: Call
    key: str
    number: int
    post: dict
    missing: set[int]
    entered: bool = False  # torch has been called, so the group now depends on the others


class Referee(LightMode, WaitListener):
    """The referee, which is active on a rank while a checked cell runs there."""

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
        self.office = board.slots - 1  # the slot of the notebook itself
        self.cell, self.participants, self.deadline = cell, set(participants), deadline
        self.dead, self.find_line = dead, find_line
        # Calls on each group in this cell; if they differ among its members, a call is missing.
        self.counts: Counter[str] = Counter()
        self.any_source = AnySource(inbox, self.counts)
        self._promised: dict[int, tuple[dist.Work, Appointment]] = {}
        self._arriving: dict[int, tuple[dist.Work, Appointment]] = {}
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
            # A rank inside torch's C++ code cannot be freed, so give the others time to come.
            self.meet(meeting, patience=0.0 if call.from_python else PATIENCE)
            args = call.bounded(func, args, self.deadline - time.monotonic() - 1.0)
        meeting.entered = True
        result = func(*args, **kwargs)
        if call.asynchronous and call.from_python:
            self._promise(result, meeting)
        return result

    def before_wait(self, work: dist.Work) -> None:
        """Check that the other ranks have made the call before a handle is waited for."""
        promised = self._promised.pop(id(work), None)
        if promised is not None:
            self.meet(promised[1])
            if promised[1].call.from_any:
                self._arriving[id(work)] = promised

    def after_wait(self, work: dist.Work, start: float, caller: FrameType) -> None:
        """Post the sender of a message that a receive from any rank has taken."""
        if id(work) in self._arriving:
            _, meeting = self._arriving.pop(id(work))
            sender = meeting.call.members[work._source_rank()]
            self._post_as_receive_from(sender, meeting, arrived=True)

    def meet(self, meeting: Appointment, patience: float = float("inf")) -> None:
        """Compare the call with the other ranks' calls, and wait for ranks that have made none."""
        began, pause, said = time.monotonic(), 0.0, False
        while True:
            self._look(meeting)
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
            # Yielding first keeps a check near 0.1 ms if all ranks come at once.
            pause = 0.0 if waited < 0.002 else min(0.002, pause + 0.0002)
            time.sleep(pause)
        if said:
            self._say("running")

    def _look(self, meeting: Appointment) -> None:
        """Compare the call with the ranks that have made it, and remove these from `missing`."""
        if meeting.call.from_any:
            sends = self.any_source.sends(meeting.call, meeting.number)
            if sends and not self._one_fits(meeting, [theirs for _, theirs in sends]):
                self._post_as_receive_from(sends[0][0], meeting)
                self._compare(meeting, *sends[0])
            if sends:
                meeting.missing.clear()
        for peer in sorted(meeting.missing):
            theirs = self.inbox.find(peer, meeting.key, meeting.number)
            if theirs is None and meeting.call.peer is not None and not meeting.call.from_any:
                theirs = self._open_receive(meeting, peer)
            if theirs is not None:
                self._compare(meeting, peer, theirs)
                meeting.missing.discard(peer)

    def _one_fits(self, meeting: Appointment, posts: list[dict]) -> bool:
        ours = meeting.post["compare"]
        if meeting.call.from_any:
            ours = self.any_source.compare(meeting.call)
        return any(ANYTHING in (ours, post["compare"]) or post["compare"] == ours for post in posts)

    def _open_receive(self, meeting: Appointment, peer: int) -> dict | None:
        """Return a receive from any rank that this send may match: the receive fits, and no earlier
        send of this rank has taken it. If none fits, the receiver reports the error."""
        earlier = range(meeting.number - 1, 0, -1)
        met = next((n for n in earlier if self.inbox.find(peer, meeting.key, n) is not None), 0)
        # Read after the search for the match, so that a message arriving in between is counted as
        # neither instead of both.
        receives = any_source.still_open(self.inbox.posts(peer), any_source.open_key(meeting.call))
        if len(receives) < meeting.number - met:
            return None
        return next((post for post in receives if self._one_fits(meeting, [post])), None)

    def _post_as_receive_from(
        self, sender: int, meeting: Appointment, *, arrived: bool = False
    ) -> None:
        post = dict(meeting.post)
        if arrived:
            post["compare"] = self.any_source.compare(meeting.call)
            post["arrived"] = [meeting.key, meeting.number]
            post["key"], post["n"] = self.any_source.arrive(meeting.call, sender)
        else:  # it will not be received, and the common key reports the disagreement
            expected = self.any_source.expected(meeting.call)
            post["key"], post["n"] = next(rest for m, *rest in expected if m == sender)
        self.board.post(self.rank, post)

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
        elif call.from_any:
            key = any_source.open_key(call)
            missing = {r for r in call.members if r != self.rank}
        else:
            key = any_source.message_key(call.group_name, *call.peer)
            missing = set(call.peer) - {self.rank}
        self.counts[key] += 1
        number = self.any_source.begin(key) if call.from_any else self.counts[key]
        compare = call.compare
        if call.peer and call.peer[1] == self.rank and not call.from_any:
            compare = ANYTHING if self.any_source.overtake(call) else compare
        where, source = self.find_line(stacks.own(sys._getframe(2)))
        post = {
            "cell": self.cell,
            "key": key,
            "n": number,
            "text": call.text,
            "where": where,
            "source": source[:80],
            "async": call.asynchronous and call.peer is None,
            "compare": compare,
            "exchange": call.exchange,
        }
        self.board.post(self.rank, post)
        return Appointment(call, key, number, post, missing)

    def _promise(self, result, meeting: Appointment) -> None:
        boxed = result[-1] if isinstance(result, tuple | list) else result
        if isinstance(boxed, torch.ScriptObject):
            # While this reference lives, Python gets the same object for the same handle.
            work = dist.Work.unbox(boxed)
            self._promised[id(work)] = (work, meeting)

    def _compare(self, meeting: Appointment, peer: int, theirs: dict) -> None:
        call = meeting.call
        ours = meeting.post["compare"]
        same = theirs["compare"] == ours or ANYTHING in (theirs["compare"], ours)
        if same and call.exchange:  # the rows I send you must be those that you expect from me
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
            if status.get("cell") != self.cell or status.get("state") not in ENDED:
                continue
            # It may have posted just before it ended, so look once more.
            if self.inbox.find(peer, meeting.key, meeting.number) is not None:
                continue
            if meeting.call.from_any and not self._all_have_ended(meeting):
                continue
            did = "has finished the cell"
            if status["state"] == "failed":
                did = f"stopped with {status['error']}"
            self._withdraw(meeting)
            raise NeverCame(f"{meeting.call.text} waits for rank {peer}, which {did}")

    def _all_have_ended(self, meeting: Appointment) -> bool:
        """Return True if no missing rank can still send or has sent before its end."""
        statuses = [self.board.status(peer) for peer in meeting.missing]
        ended = [s.get("cell") == self.cell and s.get("state") in ENDED for s in statuses]
        return all(ended) and not self.any_source.sends(meeting.call, meeting.number)

    def _withdraw(self, meeting: Appointment) -> None:
        # A call from C++ leaves its caller half done (DDP's reducer), so do not trust that group.
        if not meeting.entered and meeting.call.from_python:
            self.counts[meeting.key] -= 1

    def _say(self, state: str, meeting: Appointment | None = None) -> None:
        status = {"cell": self.cell, "state": state}
        if meeting is not None:
            status.update({k: meeting.post[k] for k in ("text", "where", "source", "key", "n")})
            if meeting.call.from_any:
                status["or"] = self.any_source.expected(meeting.call)
        self.board.set_status(self.rank, status)


def _ranks(members: list[int]) -> str:
    return ("rank " if len(members) == 1 else "ranks ") + ", ".join(map(str, members))
