"""Lesson 01's ring and all-gather: the budget as it is stated, and the cause called by its name.

What a learner is likely to write first, on the judge's real ranks.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from course_lib.classroom.checks import bench, frame, judge
from course_lib.classroom.hangs import Fact, Scene
from tests.answers.lesson_01 import GATHER, PIECES_ROUND, RING
from tests.likeliest import likeliest
from tests.test_checks_01 import changed

SEND = "sending = dist.isend(chunks[out], group=group, group_dst=(rank + 1) % n)"
RECEIVE = "dist.irecv(arriving, group=group, group_src=(rank - 1) % n).wait()"
WAIT = "        sending.wait()\n"
FROM_THE_LESSON = """
def pass_on(piece, group):
    n, rank = group.size(), group.rank()
    arrival = torch.empty_like(piece)
    sending = dist.isend(piece, group=group, group_dst=(rank + 1) % n)
    dist.irecv(arrival, group=group, group_src=(rank - 1) % n).wait()
    sending.wait()
    return arrival


def ring_all_reduce(x, group):
    n, rank = group.size(), group.rank()
    chunks = list(x.chunk(n))
    for step in range(n - 1):
        arrival = pass_on(chunks[(rank - step) % n], group)
        coming = (rank - step - 1) % n
        chunks[coming] = chunks[coming] + arrival
    for step in range(n - 1):
        chunks[(rank - step) % n] = pass_on(chunks[(rank + 1 - step) % n], group)
    return torch.cat(chunks)
"""
# All read what they have not waited for before anybody sends: one at least is too early.
TOO_EARLY = changed(f"        {SEND}\n        {RECEIVE}\n", "").replace(
    WAIT,
    "        coming_in = dist.irecv(arriving, group=group, group_src=(rank - 1) % n)\n"
    "        read = arriving.clone()\n"
    f"        {SEND}\n        coming_in.wait()\n        sending.wait()\n        arriving = read\n",
)
# How a ring is wrong, the name under which it is refused, and words that name the cause.
RINGS = {
    "the rest in the last chunk": (
        changed("cut(len(x), n)", "[len(x) // n] * (n - 1) + [len(x) - len(x) // n * (n - 1)]"),
        "message too long",
        "does not divide in one chunk?",
    ),
    "n steps in each round": (
        changed("2 * (n - 1)", "2 * n"),
        "one step too many",
        "6 messages instead of 4, which is one step too many in each round",
    ),
    "n steps in one round": (
        changed("2 * (n - 1)", "2 * n - 1"),
        "one step too many",
        "5 messages instead of 4, which is one step too many in one of the rounds",
    ),
    "the lesson's": (FROM_THE_LESSON, "room of another length", "as long as what it sends"),
    "read before the wait": (TOO_EARLY, "read too early", "values that no rank had"),
    "all send first": (
        changed(WAIT, "").replace(SEND, SEND.replace("sending = dist.isend", "dist.send")),
        "deadlock",
        "until its message is taken, and no rank takes one",
    ),
    "torch's rank": (
        changed("group.rank()", "dist.get_rank()"),
        "not of the group",
        "on a group of 2 out of 3 ranks",
    ),
    "no group": (
        RING.replace("group=group, group_dst", "dst").replace("group=group, group_src", "src"),
        "group left out",
        "Pass `group=group`",
    ),
    "one rank returns": (
        changed(
            "    return torch.cat(chunks)", "    if rank == 0:\n        return torch.cat(chunks)"
        ),
        "not returned everywhere",
        "Only rank 0 returned something",
    ),
}
GATHERS = {
    "torch's own, with room like mine": (
        "def all_gather_uneven(piece, group):\n"
        "    pieces = [torch.empty_like(piece) for _ in range(group.size())]\n"
        "    dist.all_gather(pieces, piece, group=group)\n    return pieces\n",
        "ready-made collective",
        "all_gather",
    ),
    "my own n times": (
        "def all_gather_uneven(piece, group):\n    return [piece] * group.size()\n",
        "nobody asked",
        "No rank sent",
    ),
    "n steps": (GATHER.replace("range(n - 1)", "range(n)"), "one step too many", "its own home"),
    "n steps for the pieces": (
        GATHER.replace(PIECES_ROUND, PIECES_ROUND.replace("range(n - 1)", "range(n)")),
        "one step too many",
        "n−1 steps are enough",
    ),
}


def refused(verdict: frame.Verdict, name: str, words: str) -> None:
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)
    assert words in verdict.text


def test_what_has_not_arrived_is_no_number():
    seen = []

    def look(x, group):
        seen.append(torch.empty_like(x))
        return x.clone()

    x = torch.zeros(4096, dtype=torch.float64)
    for _ in range(3):  # what a freed tensor leaves behind is zeros, and no NaN
        before = torch.are_deterministic_algorithms_enabled()
        bench.report(look, x, None)
        assert torch.are_deterministic_algorithms_enabled() is before
    assert all(torch.isnan(empty).all() for empty in seen)


@pytest.mark.parametrize("mistake", likeliest(RINGS))
def test_a_likely_ring_is_refused_by_its_name(desk, mistake):
    source, name, words = RINGS[mistake]
    refused(desk.check("ring_all_reduce", {"ring_all_reduce": source}), name, words)


def test_a_send_that_nobody_waited_for_is_told_from_a_deadlock():
    # Whether such a message is lost is chance; these are the facts of a run in which it was.
    left = [Fact(r, "ok", "finished the cell; its last call was recv") for r in (0, 2)]
    lost = "waited in your cell, line 14 until torch gave up: Timed out waiting 7000ms for recv"
    scene = Scene(None, 1, [0, 1, 2], facts=[*left, Fact(1, "transport", lost)])
    ended = SimpleNamespace(busy="", interrupted=False, scene=scene)
    finding = judge._finding(ended, "here")
    assert finding.name == "send not waited for"
    assert "Keep what isend returns, and wait for it" in finding.text
    scene.facts[2] = Fact(1, "waited", "waited in recv(from rank 0) for rank 0")
    finding = judge._finding(ended, "here")
    assert finding.name == "deadlock"
    assert "does every receive have its send" in finding.text


@pytest.mark.parametrize("mistake", likeliest(GATHERS))
def test_a_likely_all_gather_is_refused_by_its_name(desk, mistake):
    source, name, words = GATHERS[mistake]
    refused(desk.check("all_gather_uneven", {"all_gather_uneven": source}), name, words)


def test_few_accidents_are_compared_without_a_ratio(desk):
    desk.predict("01.accidents", 2, "of 4 accidents")
    told = desk.measured("01.accidents", 1, "of 4 accidents")
    assert told == "Measured 01.accidents: 1 of 4 accidents. Prediction: 2 of 4 accidents."
    desk.predict("01.bytes", 200, "bytes")
    assert desk.measured("01.bytes", 100, "bytes").endswith("200 bytes, 2 times as much.")
