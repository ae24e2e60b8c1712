"""What the other ranks have posted in the cell under way, read off the board call by call."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from course_lib.classroom.board import Board


class Inbox:
    """The calls of each peer, by the group and the number that they have there."""

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

    def posts(self, peer: int) -> Iterable[dict]:
        """All calls of the peer in this cell that have been read so far."""
        return self._calls[peer].values()
