"""The board: what one rank writes the others read whole, or not at all."""

from __future__ import annotations

import pytest

from course_classroom.ranks.board import KEPT, Board, Inbox


@pytest.fixture
def board(tmp_path):
    return Board.create(tmp_path / "board", 3)


def test_calls_keep_their_order_and_their_numbers(board):
    for k in range(5):
        assert board.post(0, {"text": f"call {k}"}) == k + 1
    assert [c["text"] for _, c in board.calls(0)] == [f"call {k}" for k in range(5)]
    assert [n for n, _ in board.calls(0, since=3)] == [4, 5]
    assert board.call(0, 2) == {"text": "call 1"}
    assert board.call(0, 6) is None and board.newest(0) == 5 and board.calls(1) == []


def test_old_calls_are_forgotten_not_mistaken(board):
    for k in range(KEPT + 10):
        board.post(2, {"k": k})
    assert board.call(2, 5) is None
    assert board.newest(2) == KEPT + 10
    assert [c["k"] for _, c in board.calls(2)] == list(range(10, KEPT + 10))


def test_half_a_write_is_not_read(board):
    board.set_status(0, {"state": "running", "text": "a" * 50})
    at = bytes(board._memory).index(b"aaaa")
    board._memory[at : at + 4] = b"bbbb"  # as if the writer were in the middle
    assert board.status(0) == {}


def test_long_texts_are_cut_to_fit(board):
    board.set_status(0, {"error": "x" * 100_000, "cell": 3})
    found = board.status(0)
    assert found["cell"] == 3 and 0 < len(found["error"]) < 1000
    board.post(0, {"text": "y" * 5000, "n": 1})
    assert board.call(0, 1)["n"] == 1


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
