"""The board: what one rank writes the others read whole, or not at all."""

from __future__ import annotations

import pytest

from course_lib.classroom.board import KEPT, Board


@pytest.fixture
def board(tmp_path):
    made = Board.create(tmp_path / "board", 3)
    yield made
    made.close()


def test_a_status_is_read_by_another_process_view(board, tmp_path):
    board.set_status(1, {"state": "running", "cell": 7})
    other = Board(tmp_path / "board", 3)
    assert other.status(1) == {"state": "running", "cell": 7}
    assert other.status(0) == {} and other.status(2) == {}
    board.set_status(1, {"state": "done"})
    assert other.status(1) == {"state": "done"}


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
