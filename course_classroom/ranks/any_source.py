"""Receives from any rank: which send each of them takes is known only when it has arrived.

Until then such a receive stands on the board under a key of its own, and waits for as many sends as
it needs that no other receive has taken; a send is met by one that is still open. On its arrival it
is posted again, as the receive of the send that it took, so that later messages are counted right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from course_classroom.ranks.board import Inbox
from course_classroom.ranks.calls import Call

ANYTHING = "*"  # compares equal: a message whose place among the others is not known yet


def message_key(group: str, sender: int, receiver: int) -> str:
    return f"{group}:{sender}>{receiver}"


def open_key(call: Call) -> str:
    """The key of receives from any rank by the receiver of this message; it names all members, as
    any of them may send."""
    return f"{call.group_name}:{','.join(map(str, call.members))}>{call.peer[1]}"


def still_open(calls: Iterable[dict], key: str) -> list[dict]:
    """Of the posts of one rank, the receives from any rank that have not arrived."""
    calls = list(calls)
    arrived = {call["arrived"][1] for call in calls if call.get("arrived", [""])[0] == key}
    return [call for call in calls if call["key"] == key and call["n"] not in arrived]


class AnySource:
    """The receives from any rank that one rank has begun in a cell; `counts` are its calls by key,
    and of these receives those that are open."""

    def __init__(self, inbox: Inbox, counts: Counter[str]):
        self.inbox, self.counts = inbox, counts
        self._begun: Counter[str] = Counter()
        self._arrived: Counter[str] = Counter()
        self._overtaken: set[str] = set()

    def begin(self, key: str) -> int:
        """The number of one more receive."""
        self._begun[key] += 1
        return self._begun[key]

    def overtake(self, call: Call) -> bool:
        """Whether a receive from a named rank stands beside an open one from any: then it is not
        known which message either of them gets, until all that are open have arrived."""
        beside = self.counts[open_key(call)] > 0
        if beside:
            self._overtaken.add(open_key(call))
        return beside

    def compare(self, call: Call) -> str:
        """What has to agree between such a receive and a send."""
        return ANYTHING if open_key(call) in self._overtaken else call.compare

    def expected(self, call: Call) -> list[tuple[int, str, int]]:
        """(sender, key, number) of each message that could come next to this receive's rank."""
        keys = [(m, message_key(call.group_name, m, call.peer[1])) for m in call.members]
        return [(m, key, self.counts[key] + 1) for m, key in keys if m != call.peer[1]]

    def sends(self, call: Call, number: int) -> list[tuple[int, dict]]:
        """(sender, post) of the sends that no receive has taken; none while they are too few for
        the receive of this number, as those begun before it are served first."""
        untaken = [send for first in self.expected(call) for send in self._from(*first)]
        return untaken if len(untaken) >= number - self._arrived[open_key(call)] else []

    def _from(self, sender: int, key: str, number: int) -> Iterator[tuple[int, dict]]:
        while (post := self.inbox.find(sender, key, number)) is not None:
            yield sender, post
            number += 1

    def arrive(self, call: Call, sender: int) -> tuple[str, int]:
        """Count an open receive as that of the sender's next message: its key and number."""
        self.counts[open_key(call)] -= 1
        if not self.counts[open_key(call)]:
            self._overtaken.discard(open_key(call))
        self._arrived[open_key(call)] += 1
        key = message_key(call.group_name, sender, call.peer[1])
        self.counts[key] += 1
        return key, self.counts[key]
