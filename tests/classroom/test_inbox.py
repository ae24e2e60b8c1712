"""The referee's inbox: a call that is posted while the board is read is not lost."""

from __future__ import annotations

from course_lib.classroom.board import KEPT, Board
from course_lib.classroom.inbox import Inbox

KEY = "a group"


def post(board: Board, number: int) -> None:
    board.post(0, {"cell": 1, "key": KEY, "n": number})


class Hurried(Board):
    """Read by a slow reader: call 1 comes when it has looked for it, and while it then goes through
    the list, calls 2 and 3 come, of which it has passed the place of the first."""

    owner: Board
    posted = 0

    def call(self, slot: int, number: int) -> dict | None:
        found = super().call(slot, number)
        if found is None and not self.posted:
            self.posted = 1
            post(self.owner, 1)
        return found

    def calls(self, slot: int, since: int = 0) -> list[tuple[int, dict]]:
        found = super().calls(slot, since)
        if self.posted == 1:
            self.posted = 3
            post(self.owner, 2)
            post(self.owner, 3)
            found.append((3, super().call(slot, 3)))
        return found


def test_a_call_that_is_posted_while_the_list_is_read_is_found_the_next_time(tmp_path):
    owner = Board.create(tmp_path / "board", 2)
    reader = Hurried(tmp_path / "board", 2)
    reader.owner = owner
    inbox = Inbox(reader)
    inbox.open(1)
    assert inbox.find(0, KEY, 1) is not None
    assert reader.posted == 3  # all that was to happen has happened
    assert [inbox.find(0, KEY, n) is not None for n in (1, 2, 3)] == [True] * 3


def test_what_the_board_has_forgotten_is_passed_over(tmp_path):
    owner = Board.create(tmp_path / "board", 2)
    inbox = Inbox(Board(tmp_path / "board", 2))
    inbox.open(1)
    for number in range(1, KEPT + 11):
        post(owner, number)
    assert inbox.find(0, KEY, KEPT + 10) is not None
    assert inbox.find(0, KEY, 11) is not None and inbox.find(0, KEY, 10) is None
