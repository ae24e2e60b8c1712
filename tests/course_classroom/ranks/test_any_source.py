"""Receives from any rank under the referee: programs that are right pass, others are explained."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from course_classroom.ranks import any_source
from course_classroom.ranks.board import Inbox
from course_classroom.ranks.calls import Call
from course_classroom.ranks.referee import Appointment, Referee
from tests.course_classroom.conftest import freed, printed, told, works

ORDERLY = """
box, late = torch.empty(3), torch.empty(5)
if rank == 0:
    sources = [dist.recv(box) for _ in range(2 * (world - 1))]
    print(sorted(sources), box.tolist())
    dist.barrier()
    for peer in range(1, world):              # of another shape: each is counted right
        dist.recv(late, peer)
    dist.send(late, world - 1)
else:
    for _ in range(2):
        dist.send(torch.ones(3), 0)
    dist.barrier()
    dist.send(torch.arange(5.0), 0)
    if rank == world - 1:
        print(dist.recv(late), late.tolist())
dist.barrier()
"""

OVERLAPPING = """
first, second = torch.empty(3), torch.empty(2)
if rank == 0:
    dist.send(torch.ones(3), 1, tag=1)
    dist.send(torch.zeros(2), 1)
    dist.send(torch.ones(4), 1)
else:
    handle = dist.irecv(first, tag=1)         # open while the next message is asked for by name
    dist.recv(second, 0)
    handle.wait()
    third = torch.empty(4)
    dist.recv(third, 0)
    print(first.tolist(), second.tolist(), third.sum().item())
"""

LATER = "[handle.wait() for handle in reversed([dist.{0} for _ in range(2)])]"


@pytest.mark.parametrize("world", [2, 3])
def test_messages_from_any_rank_arrive_and_later_ones_are_counted_right(clusters, world):
    cluster = clusters(world)
    cluster.run("kept = group")
    for _ in range(2):
        said = printed(cluster.run(ORDERLY, deadline=15.0))
        sources = sorted([*range(1, world)] * 2)
        assert said[0] == f"{sources} [1.0, 1.0, 1.0]\n"
        assert said[-1] == "0 [0.0, 1.0, 2.0, 3.0, 4.0]\n"
    assert cluster.pull("kept is group") == [True] * world


def test_a_named_message_beside_an_open_receive_passes(two):
    assert printed(two.run(OVERLAPPING, deadline=15.0))[1] == "[1.0, 1.0, 1.0] [0.0, 0.0] 4.0\n"
    works(two)


@pytest.mark.parametrize("world", [2, 3])
def test_a_receive_that_no_rank_sends_to_ends_at_once(clusters, world):
    cluster = clusters(world)
    text = freed(cluster.run("if rank == 1:\n    dist.recv(torch.empty(3))", deadline=20.0))
    assert "rank 1 waited in recv(from any rank) of float32[3]" in text and "line 2" in text
    works(cluster)


def test_ranks_that_all_receive_from_any_are_freed_before_the_deadline(two):
    text = freed(two.run("dist.recv(torch.empty(3))", deadline=20.0))
    assert text.count("waited in recv(from any rank) of float32[3]") == 2
    works(two)


def test_a_message_of_another_shape_is_told_on_both_ranks(two):
    code = "if rank == 0: dist.send(torch.ones(3), 1)\nelse: dist.recv(torch.ones(4))"
    ended = two.run(code, deadline=20.0)
    text = freed(ended)
    assert [outcome.ename for outcome in ended.outcomes] == ["CollectiveMismatch"] * 2
    assert "the ranks disagree about a collective" in text
    assert "rank 0 calls send(to rank 1) of float32[3] in line 1" in text
    assert "rank 1 calls recv(from any rank) of float32[4] in line 2" in text
    works(two)


def test_a_receive_that_is_begun_and_never_arrives_is_told(two):
    text = told(two.run("if rank == 1:\n    handle = dist.irecv(torch.empty(3))", deadline=6.0))
    assert "rank 1 began recv(from any rank) of float32[3] without waiting for it" in text
    works(two)


@pytest.mark.parametrize(
    ("sends", "receives", "words"),
    [
        ("[dist.send(x, 1), dist.send(x, 1)]", "dist.recv(x)", "rank 0 waited in send(to rank 1)"),
        ("dist.send(x, 1)", LATER.format("irecv(x)"), "rank 1 waited in recv(from any rank)"),
        (LATER.format("isend(x, 1)"), "dist.recv(x)", "rank 0 waited in send(to rank 1)"),
    ],
    ids=["a send", "a receive", "two sends at once"],
)
def test_a_message_without_its_other_half_is_told(two, sends, receives, words):
    code = f"x = torch.ones(3)\nif rank == 0:\n    {sends}\nelse:\n    {receives}"
    text = freed(two.run(code, deadline=20.0))
    line = 5 if "recv" in words else 3
    assert f"{words} of float32[3]" in text and f"line {line}" in text
    works(two)


class Arriving:
    """A board of rank 1 with one receive from any rank; the call after it, that this has arrived,
    is there from the `late`-th look on."""

    def __init__(self, call: Call, late: int):
        key = any_source.open_key(call)
        opened = {"cell": 1, "key": key, "n": 1, "compare": call.compare}
        met = {"key": any_source.message_key(call.group_name, 0, 1), "arrived": [key, 1]}
        self.posts, self.late, self.looks = [opened, opened | met], late, 0

    def call(self, peer: int, number: int) -> dict | None:
        self.looks += 1
        there = self.posts if self.looks >= self.late else self.posts[:1]
        return there[number - 1] if number <= len(there) else None

    def newest(self, peer: int) -> int:
        return 0


@pytest.mark.parametrize("late", range(1, 8))
def test_a_receive_that_arrives_while_a_second_send_looks_is_not_open_as_well(late):
    """Counted as met and as open, it would free the second send, which then waits inside gloo."""
    call = Call("g", [0, 1], "send", "float32[3]", True, True, peer=(0, 1))
    inbox = Inbox(Arriving(call, late))
    inbox.open(1)
    key = any_source.message_key("g", 0, 1)
    referee = SimpleNamespace(inbox=inbox)
    referee._one_fits = lambda meeting, posts: Referee._one_fits(referee, meeting, posts)
    second = Appointment(call, key, 2, {"compare": "float32[3]"}, {1})
    inbox.find(1, key, 2)  # as the referee does before it looks for an open one
    assert Referee._open_receive(referee, second, 1) is None
