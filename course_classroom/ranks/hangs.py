"""Explanations of failed cells: the ranks that wait, and the activity of the missing ranks.

An explanation combines the board with the ranks' stacks and errors, first cause first, for any code
that communicates through torch, such as DDP and FSDP2. Lesson 00 reads one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from course_classroom.ranks.board import Board
from course_classroom.ranks.lost_gpu import lost_gpu
from course_classroom.ranks.wire import Outcome, Rank

# Errors that follow from a different rank's failure, as the transports word them.
_TRANSPORT = re.compile(
    r"gloo|nccl|timed out|timeout|connection (closed|reset|refused)|broken pipe|unbound buffer",
    re.IGNORECASE,
)
_BUILD_PATH = re.compile(r"\[/\S+:\d+\] ")
_ORDER = ["died", "raised", "stuck", "interrupted", "transport", "waited", "unanswered", "ok"]
_WAITED = ("NeverCame", "Released")


@dataclass
class Fact:
    rank: int
    kind: str  # ok, died, raised, waited, interrupted, stuck, unanswered
    text: str
    at: float = 0.0


@dataclass
class Scene:
    """The state of a cell that is visible from outside, during and after its run."""

    board: Board
    cell: int
    participants: list[int]
    stacks: dict[int, dict] = field(default_factory=dict)
    statuses: dict[int, dict] = field(default_factory=dict)
    calls: dict[int, list[dict]] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    checked: bool = True
    freed: bool = False  # the notebook has interrupted the ranks
    _waiting: dict[int, tuple] = field(default_factory=dict)

    def look(self, ranks: list[Rank], open_ranks: list[int]) -> None:
        """Ask the ranks that have not ended for their stacks."""
        for r in open_ranks:
            stack = ranks[r].ask_stack()
            if stack.get("where"):
                self.stacks[r] = stack

    def deadlock(self, open_ranks: list[int]) -> str:
        """Describe a deadlock: all running ranks have waited for each other since the last look."""
        before, self._waiting = self._waiting, {}
        for r in open_ranks:
            status = self._status(r)
            if status.get("state") != "waiting":
                return ""
            # The awaited call was made, but the rank has not had processor time to see it.
            if not self._absent(status["key"], status["n"]):
                return ""
            if any(self._has_called(*message) for message in status.get("or", [])):
                return ""
            self._waiting[r] = (status["key"], status["n"])
        if before != self._waiting:
            return ""
        return "all ranks that have not finished wait for each other"

    def _absent(self, key: str, number: int) -> list[int]:
        return [m for m in _members(key) if not self._has_called(m, key, number)]

    def _has_called(self, r: int, key: str, number: int) -> bool:
        calls = (call for _, call in self.board.calls(r) if call["cell"] == self.cell)
        return any(call["key"] == key and call["n"] >= number for call in calls)

    def progress(self, open_ranks: list[int]) -> list[str]:
        """Describe the ranks' activity in a long cell, with one line for ranks that do the same."""
        doing: dict[tuple[bool, str], list[int]] = {}
        for r in open_ranks:
            status, stack = self._status(r), self.stacks.get(r, {})
            if status.get("state") == "waiting":
                doing.setdefault((True, f"{status['text']} ({status['where']})"), []).append(r)
            elif stack:
                place = f"{stack['where']}: {stack['source'][:40]}"
                doing.setdefault((False, place), []).append(r)
        return [_does(waits, what, who) for (waits, what), who in doing.items()]

    def close(self, outcomes: dict[int, Outcome]) -> None:
        """Read the board once more after the cell, and record each rank's result."""
        for r in self.participants:
            self.statuses[r] = self._status(r)
            calls = [call for _, call in self.board.calls(r) if call["cell"] == self.cell]
            # A receive from any rank that has arrived is posted again as that of its sender.
            again = [call["arrived"] for call in calls if "arrived" in call]
            self.calls[r] = [call for call in calls if [call["key"], call["n"]] not in again]
        self.facts = [self._fact(outcomes[r]) for r in self.participants]

    def groups_destroyed(self) -> bool:
        """Return True if the cell itself has removed some rank from all groups."""
        return any(status.get("alone") for status in self.statuses.values())

    def groups_intact(self) -> bool:
        """Return True if all members of every group made the same calls, and none failed."""
        if not self.checked or self.groups_destroyed():
            return False
        if any("counts" not in self.statuses[r] for r in self.participants):
            return False
        keys = {key for r in self.participants for key in self.statuses[r]["counts"]}
        even = all(len({self._count(m, key) or 0 for m in _members(key)}) == 1 for key in keys)
        return even and not any(fact.kind == "transport" for fact in self.facts)

    def ordered(self) -> list[Fact]:
        """Return the facts with the first cause first, then its consequences."""
        first = min((fact.at for fact in self.facts if fact.kind == "raised"), default=0.0)
        # Errors within a tenth of a second have one cause, so rank order keeps runs equal.
        late = {f.rank: f.kind == "raised" and f.at - first > 0.1 for f in self.facts}
        return sorted(self.facts, key=lambda f: (_ORDER.index(f.kind), late[f.rank], f.rank))

    def _status(self, r: int) -> dict:
        status = self.board.status(r)
        return status if status.get("cell") == self.cell else {}

    def _fact(self, outcome: Outcome) -> Fact:
        r, stack = outcome.rank, self.stacks.get(outcome.rank, {})
        last = self.calls[r][-1] if self.calls[r] else {}
        where = _where(outcome.where, outcome.source)

        def fact(kind: str, text: str) -> Fact:
            return Fact(r, kind, text, outcome.at)

        if outcome.status == "ok":
            begun, missing = self._unanswered(r)
            if not missing:
                return fact("ok", "finished the cell" + self._last_call(r))
            text = f"began {begun.get('text', 'a call')} without waiting for it"
            text += _where(begun.get("where", ""), begun.get("source", ""))
            return fact("unanswered", f"{text}; {_not_made(missing)}")
        if outcome.status == "died":
            seen = last or stack
            seen_in = _where(seen.get("where", ""), seen.get("source", ""), "; last seen in")
            return fact("died", outcome.evalue + seen_in)
        verb = stack.get("verb", "")
        if outcome.status == "stuck":
            place = "did not come back, and its place is unknown"
            if stack:
                place = f"did not come back from {stack['where']}: {stack['source']}"
            return fact("stuck", place + (f" ({verb})" if verb else ""))
        if outcome.ename in _WAITED:
            return fact("waited", _waited(last, where, self._missing(last)))
        lost = lost_gpu(outcome.evalue)
        if lost:
            noticed = _where(outcome.where, outcome.source, "; noticed in")
            return fact("raised", f"lost its GPU to a CUDA error: {lost}{noticed}")
        owed = self._owed(r)
        waited = _waited(owed, where, self._missing(owed))
        if outcome.ename == "KeyboardInterrupt" and self.freed:
            if owed:
                return fact("waited", waited)
            inside = f", inside {stack['inside']}" if stack.get("inside") else ""
            return fact("interrupted", f"was still busy{where}{inside}")
        torchs = outcome.ename in ("RuntimeError", "DistBackendError")
        if torchs and _TRANSPORT.search(outcome.evalue):
            first = _BUILD_PATH.sub("", outcome.evalue.strip().splitlines()[0])[:160]
            told = f"waited{f' in {verb}' if verb else ''}{where} until torch gave up: {first}"
            return fact("transport", waited if owed else told)
        if outcome.ename == "CollectiveMismatch":
            return fact("raised", f"stopped: {self._disagreement(r)}")
        if outcome.ename == "DeadGroup":
            return fact("raised", f"stopped: {outcome.evalue}")
        said = f"{outcome.ename}: {outcome.evalue}" if outcome.evalue else outcome.ename
        return fact("raised", f"raised {said}{where}")

    def _owed(self, r: int) -> dict:
        """Return the first call of this rank that some other group member has not made."""
        return next((call for call in self.calls[r] if self._missing(call)), {})

    def _unanswered(self, r: int) -> tuple[dict, list[int]]:
        """Return a call that this rank has begun and the ranks that have not made it.

        The board drops old calls, but the counts cover the full cell.
        """
        for key, count in self.statuses[r].get("counts", {}).items() if self.checked else ():
            made = {m: self._count(m, key) for m in _members(key)}
            missing = [m for m, n in made.items() if n is not None and n < count]
            if missing:
                least = min(made[m] for m in missing)
                begun = (c for c in self.calls[r] if c["key"] == key and c["n"] > least)
                return next(begun, {}), missing
        return {}, []

    def _count(self, r: int, key: str) -> int | None:
        """Count the calls of a rank on this group in the finished cell; None if unknown."""
        counts = self.statuses.get(r, {}).get("counts")
        return None if counts is None else counts.get(key, 0)

    def _missing(self, call: dict) -> list[int]:
        if not call:
            return []
        return [
            m
            for m in _members(call["key"])
            if m in self.calls
            and not any(c["key"] == call["key"] and c["n"] >= call["n"] for c in self.calls[m])
        ]

    def _disagreement(self, r: int) -> str:
        """Describe the calls of all members at the position of rank r's last call."""
        mine = self.calls[r][-1]
        said: dict[str, list[int]] = {}
        for peer in self.participants:
            for call in self.calls[peer]:
                if (call["key"], call["n"]) == (mine["key"], mine["n"]):
                    said.setdefault(f"{call['text']} in {call['where']}", []).append(peer)
        parts = [f"{_ranks(who)} {'call' if who[1:] else 'calls'} {s}" for s, who in said.items()]
        return "the ranks disagree about a collective: " + "; ".join(parts)

    def _last_call(self, r: int) -> str:
        if not self.checked:
            return ""
        if not self.calls[r]:
            return " without calling any collective"
        call = self.calls[r][-1]
        return f"; its last call was {call['text']} in {call['where']}"


def _members(key: str) -> list[int]:
    """Return the ranks of a group or a message, read from its key on the board."""
    return [int(number) for number in re.findall(r"\d+", key.rsplit(":", 1)[1])]


def _waited(call: dict, where: str, missing: list[int]) -> str:
    if not call:
        return f"was waiting{where}"
    absent = f" for {_ranks(missing)}" if missing else ""
    how = " (asynchronous)" if call.get("async") else ""
    at = _where(call["where"], call["source"]) or where
    return f"waited in {call['text']}{how}{absent}{at}"


def _not_made(missing: list[int]) -> str:
    return f"{_ranks(missing)} {'have' if missing[1:] else 'has'} not made that call in this cell"


def _ranks(members: list[int]) -> str:
    return ("ranks " if members[1:] else "rank ") + ", ".join(map(str, members))


def _does(waits: bool, what: str, who: list[int]) -> str:
    verb = ("wait in" if waits else "are in") if who[1:] else "waits in" if waits else "is in"
    row = who[2:] and who == list(range(who[0], who[-1] + 1))
    return f"{f'ranks {who[0]}–{who[-1]}' if row else _ranks(who)} {verb} {what}"


def _where(where: str, source: str, words: str = " in") -> str:
    return f"{words} {where}: {source}" if where else ""
