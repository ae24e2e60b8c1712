"""The pool of ranks itself: what it says when ranks fail, and that it leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

from course_lib import ranks
from tests.failures import RanksFailed, is_consequence
from tests.pool import GROUP_SHARE


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


def raise_late_on_two(me):
    time.sleep(0.05 if me.rank == 2 else 0.35)
    if me.rank:
        raise ValueError(f"cause on rank {me.rank}")
    dist.all_reduce(torch.ones(2))


def wrong_sum(me):
    total = torch.ones(3).sum()
    assert total == 4, "" if me.rank else ()


def wrong_bare(me):
    number_of_pieces = me.world + 10
    assert number_of_pieces == me.world


def never_return(me, rank):
    while me.rank == rank:
        time.sleep(0.05)


def skip_the_collective(me):
    if me.rank:
        dist.all_reduce(torch.ones(2))


def hold_the_interpreter(me):
    if me.rank == 0:  # a C call that keeps the interpreter to itself, so no thread can answer
        ctypes.PyDLL(None).sleep(100)


def die(me, rank, how):
    if me.rank != rank:
        dist.all_reduce(torch.ones(2))
    elif how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(7)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def not_picklable(me):
    return threading.Lock() if me.rank == 1 else me.rank


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


def stop_the_group(me):
    ranks.stop()


def process(me):
    return os.getpid()


def environment(me, name):
    return os.environ.get(name)


def skip_here(me):
    pytest.skip("no such thing here")


def talk(me):
    print(f"hello from {me.rank}")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_rank_answers_in_rank_order(pool, world):
    answers = pool.run(world, who)
    assert [(rank, size) for rank, size, *_ in answers] == [(r, world) for r in range(world)]
    assert len({pid for _, _, pid, *_ in answers} | {os.getpid()}) == world + 1
    assert all(threads == 1 for *_, threads, _ in answers)
    assert all(timeout == pool.timeout * GROUP_SHARE for *_, timeout in answers)
    expected = world * (world - 1) / 2 + 10 * world
    assert all(value.tolist() == [expected] * 2 for value in pool.run(world, total, 10))


def test_processes_stay_warm(pool):
    assert [pid for _, _, pid, *_ in pool.run(2, who)] == pool.pids(2)
    assert [pid for _, _, pid, *_ in pool.run(2, who)] == pool.pids(2)


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
    monkeypatch.setattr("tests.pool.GRACE", 60.0)
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


KEPT = []


def keep_the_group(me):
    KEPT.append(dist.group.WORLD)


def test_a_group_that_something_holds_does_not_hide_the_cause(pool, patient):
    """As a mesh in a cache of torch's may: its sockets would stay open, and neighbours wait."""
    pool.run(3, keep_the_group)
    began = time.monotonic()
    with pytest.raises(RanksFailed) as caught:
        pool.run(3, raise_on, 2)
    assert time.monotonic() - began < patient
    text = str(caught.value)
    assert text.index("ValueError: the cause") < text.index("rank 0, after it")
    assert [f.consequence for f in caught.value.failures[1:]] == [True, True]
    assert [len(answer) for answer in pool.run(3, total, 1)] == [2, 2, 2]


def lose_the_gpu(me, words):
    if me.rank == 1:
        raise RuntimeError(words)
    dist.all_reduce(torch.ones(2))


def test_a_rank_that_lost_its_gpu_is_replaced(pool, patient):
    """Its process would say the same in every later test. Too little memory costs one test."""
    pool.run(2, total, 1)
    before = pool.pids(2)
    with pytest.raises(RanksFailed, match="out of memory"):
        pool.run(2, lose_the_gpu, "CUDA error: out of memory")
    assert pool.pids(2) == before
    began = time.monotonic()
    with pytest.raises(RanksFailed) as caught:
        pool.run(2, lose_the_gpu, "CUDA error: device-side assert triggered")
    assert time.monotonic() - began < patient
    assert caught.value.first.summary.endswith("device-side assert triggered")
    assert [len(answer) for answer in pool.run(2, total, 1)] == [2, 2]
    assert not set(pool.pids(2)) & set(before)


def test_the_earlier_of_two_causes_is_first(pool):
    with pytest.raises(RanksFailed) as caught:
        pool.run(3, raise_late_on_two)
    assert [failure.rank for failure in caught.value.failures] == [2, 1, 0]
    assert "cause on rank 2" in caught.value.first.detail


def test_a_bare_assertion_shows_its_values(pool):
    with pytest.raises(RanksFailed, match="where number_of_pieces = 12"):
        pool.run(2, wrong_bare)


def test_raises_gives_each_ranks_words(pool):
    said = pool.raises(2, raise_on, 0, match="the cause")
    assert said[0] == "ValueError: the cause"
    assert is_consequence(RuntimeError(said[1]))
    with pytest.raises(RanksFailed, match="the cause"):
        pool.raises(2, raise_on, 0, match="another cause")
    with pytest.raises(pytest.fail.Exception, match="raised on no rank of 2"):
        pool.raises(2, draw)


def test_a_hang_shows_every_stack(pool):
    with pytest.raises(RanksFailed) as caught:
        pool.run(2, never_return, 1, timeout=1.5)
    text = str(caught.value)
    assert "rank 1 did not end within 1.5 s" in text
    assert "in never_return" in text
    assert "rank 0: had returned" in text
    assert pool.run(2, total, 0)[0].tolist() == [1.0, 1.0]


def test_a_skipped_collective_names_who_had_returned(pool):
    with pytest.raises(RanksFailed) as caught:
        pool.run(3, skip_the_collective, timeout=4.5)
    text = str(caught.value)
    assert "some rank never came" in text
    assert "rank 0: had returned" in text
    assert "dist.all_reduce(torch.ones(2))" in text
    assert caught.value.first.consequence


def test_a_rank_that_cannot_answer_is_asked_by_a_signal(pool):
    with pytest.raises(RanksFailed, match="in hold_the_interpreter"):
        pool.run(2, hold_the_interpreter, timeout=1)


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


def test_a_result_that_cannot_be_sent_says_so(pool):
    said = pool.raises(2, not_picklable, match="cannot be sent back")
    assert "rank 1" in said[1]
    assert "lock" in said[1]
    assert len(pool.run(2, draw)) == 2


def test_a_function_inside_another_is_refused(pool):
    def local(me):
        return None

    with pytest.raises(TypeError, match="top of a module"):
        pool.run(1, local)


def test_what_a_test_changes_is_put_back(pool):
    before = pool.run(3, surroundings)
    assert pool.run(3, leave_things_behind) == [2, 2, None]
    assert pool.run(3, surroundings) == before
    assert before[0] == (1, None, torch.float32, True, 1, before[0][-1])


def test_a_group_that_a_test_destroyed_is_made_anew(pool):
    pool.run(2, stop_the_group)
    assert pool.run(2, total, 0)[0].tolist() == [1.0, 1.0]


def test_an_environment_has_its_own_processes(pool):
    assert pool.run(1, environment, "COLOUR", env={"COLOUR": "red"}) == ["red"]
    assert pool.run(1, environment, "COLOUR") == [None]


def test_ranks_that_are_alone_are_new_and_end_with_the_call(pool):
    usual = pool.run(1, process)
    first, second = (pool.run(1, process, alone=True) for _ in range(2))
    assert len({*usual, *first, *second}) == 3 and pool.run(1, process) == usual
    for [pid] in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_skip_on_a_rank_skips_the_test(pool):
    with pytest.raises(pytest.skip.Exception, match="no such thing here"):
        pool.run(2, skip_here)


def test_what_ranks_print_is_shown_by_rank(pool, capsys):
    pool.run(2, talk)
    assert capsys.readouterr().out == "[rank 0] hello from 0\n[rank 1] hello from 1\n"
