"""How a failure on some ranks is told: what is a cause, what a consequence, and in which order."""

from __future__ import annotations

import pytest

from tests.failures import Failure, how_it_ended, is_consequence, told


def failure(rank, seconds, consequence=False):
    return Failure(rank, seconds, f"said {rank}", f"the whole of {rank}", consequence)


def test_causes_come_before_consequences_and_early_before_late():
    failures = [failure(0, 1.0, True), failure(1, 3.0), failure(2, 2.0)]
    error = told("fn at world 4", 30, failures={f.rank: f for f in failures}, remarks={}, stacks={})
    assert [one.rank for one in error.failures] == [2, 1, 0]
    text = str(error)
    assert text.index("fn at world 4: rank 2 failed first") < text.index("the whole of 2")
    assert text.index("the whole of 2") < text.index("rank 1, after it: said 1")
    assert "the whole of 1" not in text
    assert "some rank never came" not in text


def test_a_hang_that_no_cause_explains_is_the_error():
    stacks = {1: 'File "x.py", line 3, in deep\n', 3: 'File "y.py", line 4, in sleep\n'}
    lost = {0: failure(0, 1.0, True)}
    error = told("fn", 5, failures=lost, remarks={2: "had returned"}, stacks=stacks)
    text = str(error)
    assert error.first.rank == 1
    assert "rank 1, 3 did not end within 5 s" in text
    assert "in deep" in text
    assert "in sleep" in text
    assert "rank 0, after it: said 0" in text
    assert "rank 2: had returned" in text


def test_a_hang_beside_a_cause_is_one_line():
    stacks = {1: 'File "x.py", line 3, in deep\n    wait()\n'}
    error = told("fn", 5, failures={0: failure(0, 1.0)}, remarks={}, stacks=stacks)
    assert error.first.rank == 0
    assert str(error).endswith('rank 1: had not ended; File "x.py", line 3, in deep')


def test_exit_codes_in_words():
    assert how_it_ended(-9) == "was killed by SIGKILL (signal 9)"
    assert how_it_ended(3) == "ended with exit code 3 in the middle of the call"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("Timed out waiting 500ms for recv operation to complete"), True),
        (ValueError("Connection closed by peer"), False),
        (RuntimeError("shapes 3 and 4 differ"), False),
        (AssertionError("timed out waiting"), False),
    ],
)
def test_what_counts_as_a_consequence(error, expected):
    assert is_consequence(error) is expected


def test_an_error_raised_from_a_lost_connection_is_a_consequence_too():
    error = ValueError("wrapped")
    error.__cause__ = RuntimeError("Connection reset by peer")
    assert is_consequence(error)
