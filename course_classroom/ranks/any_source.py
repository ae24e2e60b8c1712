"""Receives from any rank: the matching send is known only after its message has arrived.

Until then such a receive is on the board under a separate key, and waits until there are enough
unmatched sends; a send matches a receive that is still open. On arrival, the receive is posted
again for the matched send, so that later messages are counted correctly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from course_classroom.ranks.board import Inbox
from course_classroom.ranks.calls import Call

ANYTHING = "*"  # compares equal: a message whose place among the others is still unknown


def message_key(group: str, sender: int, receiver: int) -> str:
    return f"{group}:{sender}>{receiver}"


def open_key(call: Call) -> str:
    """Return the key of receives from any rank on this message's receiver. The key names all
    members, because any member may send."""
    return f"{call.group_name}:{','.join(map(str, call.members))}>{call.peer[1]}"


def still_open(calls: Iterable[dict], key: str) -> list[dict]:
    """Return, from one rank's posts, the receives from any rank that have not completed."""
    calls = list(calls)
    arrived = {call["arrived"][1] for call in calls if call.get("arrived", [""])[0] == key}
    return [call for call in calls if call["key"] == key and call["n"] not in arrived]


class AnySource:
    """The receives from any rank that one rank has begun in a cell; `counts` counts its calls by
    key, including open receives."""

    def __init__(self, inbox: Inbox, counts: Counter[str]):
        self.inbox, self.counts = inbox, counts
        self._begun: Counter[str] = Counter()
        self._arrived: Counter[str] = Counter()
        self._overtaken: set[str] = set()

    def begin(self, key: str) -> int:
        """Count a new receive and return its number."""
        self._begun[key] += 1
        return self._begun[key]

    def overtake(self, call: Call) -> bool:
        """Return True if a receive from a named rank overlaps an open receive from any rank. Their
        messages are then unknown until all open receives have completed."""
        beside = self.counts[open_key(call)] > 0
        if beside:
            self._overtaken.add(open_key(call))
        return beside

    def compare(self, call: Call) -> str:
        """Return the text that must agree between a receive and its send."""
        return ANYTHING if open_key(call) in self._overtaken else call.compare

    def expected(self, call: Call) -> list[tuple[int, str, int]]:
        """Return (sender, key, number) of each possible next message to this receiver."""
        keys = [(m, message_key(call.group_name, m, call.peer[1])) for m in call.members]
        return [(m, key, self.counts[key] + 1) for m, key in keys if m != call.peer[1]]

    def sends(self, call: Call, number: int) -> list[tuple[int, dict]]:
        """Return (sender, post) of the unmatched sends, or an empty list while there are too few,
        because receives with lower numbers are served first."""
        untaken = [send for first in self.expected(call) for send in self._from(*first)]
        return untaken if len(untaken) >= number - self._arrived[open_key(call)] else []

    def _from(self, sender: int, key: str, number: int) -> Iterator[tuple[int, dict]]:
        while (post := self.inbox.find(sender, key, number)) is not None:
            yield sender, post
            number += 1

    def arrive(self, call: Call, sender: int) -> tuple[str, int]:
        """Count an open receive as the sender's next message; return its key and number."""
        self.counts[open_key(call)] -= 1
        if not self.counts[open_key(call)]:
            self._overtaken.discard(open_key(call))
        self._arrived[open_key(call)] += 1
        key = message_key(call.group_name, sender, call.peer[1])
        self.counts[key] += 1
        return key, self.counts[key]
