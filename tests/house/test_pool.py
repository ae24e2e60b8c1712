"""The pool of ranks itself: what it says when ranks fail, and that it leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from course_lib import ranks
from tests.support.failures import RanksFailed
from tests.support.pool import GROUP_SHARE


def total(me, x):
    value = torch.full((2,), float(me.rank) + x)
    dist.all_reduce(value)
    return value


def draw(me):
    return torch.rand(4)


def who(me):
    return me.rank, me.world, os.getpid(), torch.get_num_threads(), me.timeout


def raise_on(me, rank):
    if me.rank == rank:
        raise ValueError("the cause")
    dist.all_reduce(torch.ones(2))


def wrong_bare(me):
    number_of_pieces = me.world + 10
    assert number_of_pieces == me.world


def never_return(me):
    while me.rank == 1:
        time.sleep(0.05)


def skip_the_collective(me):
    if me.rank:
        dist.all_reduce(torch.ones(2))


def die(me, rank, how):
    if me.rank != rank:
        dist.all_reduce(torch.ones(2))
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(7)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def leave_things_behind(me):
    pair = ranks.new_group(me, [0, 1])
    os.environ["LEFT_BEHIND"] = "1"
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    os.chdir("/")
    return pair.size() if me.rank < 2 else None


def surroundings(me):
    return (
        len(dist.distributed_c10d._world.pg_map),
        os.environ.get("LEFT_BEHIND"),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        os.getcwd(),
    )


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_rank_answers_in_rank_order(pool, world):
    answers = pool.run(world, who)
    assert [(rank, size) for rank, size, *_ in answers] == [(r, world) for r in range(world)]
    assert len({pid for _, _, pid, *_ in answers} | {os.getpid()}) == world + 1
    assert all(threads == 1 for *_, threads, _ in answers)
    assert all(timeout == pool.timeout * GROUP_SHARE for *_, timeout in answers)
    expected = world * (world - 1) / 2 + 10 * world
    assert all(value.tolist() == [expected] * 2 for value in pool.run(world, total, 10))


def test_the_group_gives_up_before_the_call_does(pool):
    assert [timeout for *_, timeout in pool.run(2, who, timeout=12)] == [8.0, 8.0]


def test_seeds_differ_by_rank_and_repeat(pool):
    first, again = pool.run(2, draw), pool.run(2, draw)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(pool.run(2, draw, seed=1)[0], first[0])


@pytest.fixture
def patient(monkeypatch) -> float:
    """Neighbours get long to end after a rank has failed: what takes less has not waited for them.
    What it gives is less than that, and more than a busy machine needs."""
    monkeypatch.setattr("tests.support.pool.GRACE", 60.0)
    return 40.0


def test_the_cause_comes_first_and_at_once(pool, patient):
    pool.run(3, total, 1)  # the ranks are there
    began = time.monotonic()
    with pytest.raises(RanksFailed) as caught:
        pool.run(3, raise_on, 2)
    assert time.monotonic() - began < patient
    text = str(caught.value)
    assert text.index("ValueError: the cause") < text.index("rank 0, after it")
    assert 'raise ValueError("the cause")' in text
    assert "pool_worker" not in text
    assert (caught.value.first.rank, caught.value.first.consequence) == (2, False)
    assert [f.consequence for f in caught.value.failures[1:]] == [True, True]
    assert text.count("Traceback") == 1
    assert [len(answer) for answer in pool.run(3, total, 1)] == [2, 2, 2]


def test_a_bare_assertion_shows_its_values(pool):
    with pytest.raises(RanksFailed, match="where number_of_pieces = 12"):
        pool.run(2, wrong_bare)


@pytest.mark.parametrize(
    ("where", "timeout", "words"),
    [
        (never_return, 1.5, ("rank 1 did not end within 1.5 s", "in never_return")),
        (skip_the_collective, 4.5, ("some rank never came", "dist.all_reduce(torch.ones(2))")),
    ],
)
def test_a_hang_shows_every_stack_and_who_had_returned(pool, where, timeout, words):
    with pytest.raises(RanksFailed) as caught:
        pool.run(3, where, timeout=timeout)
    assert [one for one in (*words, "rank 0: had returned") if one not in str(caught.value)] == []
    assert caught.value.first.consequence == (where is skip_the_collective)
    assert pool.run(3, total, 0)[0].tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("how", "name"),
    [("kill", "SIGKILL (signal 9)"), ("segfault", "SIGSEGV (signal 11)"), ("exit", "exit code 7")],
)
def test_a_dead_rank_is_named_at_once(pool, patient, how, name):
    before = pool.pids(2)
    began = time.monotonic()
    with pytest.raises(RanksFailed) as caught:
        pool.run(2, die, 1, how)
    assert time.monotonic() - began < patient
    assert caught.value.first.rank == 1
    assert name in caught.value.first.summary
    if how == "segfault":  # the fault handler's stack is part of the story
        assert "in die" in caught.value.first.detail
    assert [value.tolist() for value in pool.run(2, total, 0)] == [[1.0, 1.0]] * 2
    assert not set(before) & set(pool.pids(2))


def test_what_a_test_changes_is_put_back(pool):
    before = pool.run(3, surroundings)
    assert pool.run(3, leave_things_behind) == [2, 2, None]
    assert pool.run(3, surroundings) == before
    assert before[0] == (1, None, torch.float32, True, 1, before[0][-1])
