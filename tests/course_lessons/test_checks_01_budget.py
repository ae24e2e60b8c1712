"""Lesson 01's ring and all-gather: the budget as it is stated, and the cause called by its name.

What a learner is likely to write first, and the three hangs that are asked about, on real ranks.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch

from course_classroom.judge import bench, judge
from course_classroom.ranks.cluster import Cluster, Ended
from course_classroom.ranks.hangs import Fact, Scene
from tests.course_lessons.answers.lesson_01 import GATHER, PIECES_ROUND, RING
from tests.course_lessons.test_checks_01 import changed
from tests.support.likeliest import likeliest_of

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
        "remainder of the division in one chunk?",
    ),
    "n steps in each round": (
        changed("2 * (n - 1)", "2 * n"),
        "one step too many",
        "6 messages instead of 4, because your code makes one step too many in each round",
    ),
    "n steps in one round": (
        changed("2 * (n - 1)", "2 * n - 1"),
        "one step too many",
        "5 messages instead of 4, because your code makes one step too many in one of the",
    ),
    "the lesson's": (FROM_THE_LESSON, "buffer of wrong length", "as long as its outgoing chunk"),
    "read before the wait": (TOO_EARLY, "read too early", "values that no rank had"),
    "all send first": (
        changed(WAIT, "").replace(SEND, SEND.replace("sending = dist.isend", "dist.send")),
        "deadlock",
        "until its message is received, but no rank receives",
    ),
    "torch's rank": (
        changed("group.rank()", "dist.get_rank()"),
        "uses world numbers",
        "on a group of 2 out of 3 ranks",
    ),
    "no group": (
        RING.replace("group=group, group_dst", "dst").replace("group=group, group_src", "src"),
        "group left out",
        "Pass `group=group`",
    ),
    "one rank returns": (
        changed("    return torch", "    if rank == 0:\n        return torch"),
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
        "nothing sent",
        "The ranks did not send or receive anything",
    ),
    "n steps": (
        GATHER.replace("range(n - 1)", "range(n)"),
        "one step too many",
        "its own data back",
    ),
    "n steps for the pieces": (
        GATHER.replace(PIECES_ROUND, PIECES_ROUND.replace("range(n - 1)", "range(n)")),
        "one step too many",
        "needs only n−1 steps",
    ),
}


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


LIKELY = [
    *(("ring_all_reduce", *row) for row in RINGS.items()),
    *(("all_gather_uneven", *row) for row in GATHERS.items()),
]


@pytest.mark.parametrize(("exercise", "mistake"), likeliest_of(LIKELY, [0, 2]))
def test_a_likely_answer_is_refused_by_its_name(desk, exercise, mistake):
    source, name, words = mistake
    verdict = desk.check(exercise, {exercise: source})
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)
    assert words in verdict.text


def test_a_send_that_nobody_waited_for_is_told_from_a_deadlock():
    # Whether such a message is lost is chance; these are the facts of a run in which it was.
    left = [Fact(r, "ok", "finished the cell; its last call was recv") for r in (0, 2)]
    lost = "waited in your cell, line 14 until torch gave up: Timed out waiting 7000ms for recv"
    scene = Scene(None, 1, [0, 1, 2], facts=[*left, Fact(1, "transport", lost)])
    ended = SimpleNamespace(busy="", interrupted=False, scene=scene)
    finding = judge._finding(ended, "here")
    assert finding.name == "send not waited for"
    assert "Keep the object that isend returns, and wait for it" in finding.text
    scene.facts[2] = Fact(1, "waited", "waited in recv(from rank 0) for rank 0")
    finding = judge._finding(ended, "here")
    assert finding.name == "deadlock"
    assert "Does every receive have a matching send" in finding.text


def test_few_accidents_are_compared_without_a_ratio(desk):
    desk.predict("01.accidents", 2, "of 4 accidents")
    told = desk.measured("01.accidents", 1, "of 4 accidents")
    assert told == "Measured 01.accidents: 1 of 4 accidents. Prediction: 2 of 4 accidents."
    desk.predict("01.bytes", 200, "bytes")
    assert desk.measured("01.bytes", 100, "bytes").endswith("200 bytes, 2 times as much.")


BOOK = Path(__file__).resolve().parents[2] / "solutions" / "01_collectives" / "who_hangs.ipynb"


def blocks(case: str) -> tuple[str, str]:
    """The cell of a case in the notebook, and what its three ranks showed."""
    cells = nbformat.read(BOOK, as_version=4).cells
    source = next(c.source for c in cells if c.id == f"who_hangs-{case}")
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", source, re.DOTALL)
    magic, body = code.split("\n", 1)
    assert magic == "%%ranks --unchecked"
    return body, shown


# What differs from rank to rank in each of them, and is not shown.
MINE = """
def my_gradients(rank):
    return [torch.ones(4), torch.ones(4) * (rank != 2), torch.ones(4)]

def my_factor(rank):
    return [0.5, 1.0, 0.5][rank]

def my_batches(rank):
    return torch.arange(6.0).split(2)[: 2 + (rank > 0)]
"""


@pytest.fixture(scope="module")
def three(desk) -> Cluster:
    """The judge's ranks, as a notebook's: what the cells need is there, and no referee."""
    desk.judge.ready()
    assert not desk.judge.run(MINE).failed
    return desk.judge


def seen(ended: Ended) -> dict[int, tuple[str, str]]:
    """For each rank the call that it stood in, or the error that it raised first, and the line."""
    found = {}
    for fact, outcome in zip(ended.scene.facts, ended.outcomes, strict=True):
        stack = ended.scene.stacks.get(outcome.rank, {})
        if fact.kind == "raised":
            found[outcome.rank] = (outcome.ename, outcome.where)
        elif stack:
            found[outcome.rank] = ((stack["verb"].split() or ["runs"])[0], stack["where"])
    return found


@pytest.mark.parametrize("case", "ABC")
def test_three_real_ranks_stand_where_the_notebook_says(three, case):
    body, shown = blocks(case)
    told = {}
    for line in shown.splitlines():
        rank, what, where = re.search(r"rank (\d)  (?:waits in )?(\w+).*(line \d+)", line).groups()
        told[int(rank)] = (what, where)
    assert sorted(told) == [0, 1, 2]
    if case == "C":  # who gave up waiting shows its error; a stack shows the call it was in
        waiting = {r for r, (what, _) in told.items() if what == "RuntimeError"}
        told.update({r: ("all_reduce", told[r][1]) for r in waiting})
    for deadline in (4.0, 20.0):  # a busy machine may need longer until all stand still
        ended = three.run(body, deadline=deadline, checked=False, first_line=2)
        found = seen(ended)
        if case == "B" and found.get(1) == ("runs", "line 7"):  # the other line of its loop
            found[1] = ("runs", "line 8")
        if found == told:
            break
    assert found == told
    if case == "C":
        first, *others = sorted(ended.outcomes, key=lambda outcome: outcome.at)
        assert (first.rank, first.ename) == (0, "IndexError")
        assert all("imed out waiting" in outcome.evalue for outcome in others)
