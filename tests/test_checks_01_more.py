"""Lesson 01's all-gather of uneven pieces, and the three hangs that it asks about, on real ranks.

The reference is right, each plausible mistake is refused by its name. What the hangs' notebook
shows is held against three ranks that run the same cells.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.cluster import Cluster, Ended
from tests.likeliest import likeliest

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS, EXERCISES = ROOT / "solutions" / "01_collectives", ROOT / "exercises" / "01_collectives"
NAME = "all_gather_uneven"

RIGHT = '''
def all_gather_uneven(piece, group):
    """All ranks' pieces."""
    n, rank = group.size(), group.rank()

    def pass_on(going, room):
        sending = dist.isend(going, group=group, group_dst=(rank + 1) % n)
        dist.irecv(room, group=group, group_src=(rank - 1) % n).wait()
        sending.wait()
        return room

    lengths, pieces = [None] * n, [None] * n
    lengths[rank], pieces[rank] = torch.tensor([len(piece)]), piece
    for step in range(n - 1):
        going, coming = (rank - step) % n, (rank - step - 1) % n
        lengths[coming] = pass_on(lengths[going], torch.empty(1, dtype=torch.long))
    lengths = [int(k) for k in lengths]
    for step in range(n - 1):
        going, coming = (rank - step) % n, (rank - step - 1) % n
        pieces[coming] = pass_on(pieces[going], piece.new_empty(lengths[coming]))
    return pieces
'''


def changed(*pairs: tuple[str, str]) -> str:
    """The right answer with one mistake in it, which may take several changes."""
    source = RIGHT
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


ROUND_OF_LENGTHS = RIGHT[RIGHT.index("    for step") : RIGHT.index("    lengths = [int(")]
PIECES_ROUND = RIGHT[RIGHT.rindex("    for step") : RIGHT.index("    return pieces")]
PADDED = (
    "    filler = max(lengths) - len(piece)\n"
    "    pieces[rank] = torch.cat([piece, piece.new_zeros(filler)])\n"
) + PIECES_ROUND.replace("lengths[coming]", "max(lengths)")
STRAIGHT = """
    flight = [dist.isend(piece, group=group, group_dst=r) for r in range(n) if r != rank]
    for r in range(n):
        if r != rank:
            pieces[r] = piece.new_empty(lengths[r])
            dist.recv(pieces[r], group=group, group_src=r)
    [one.wait() for one in flight]
"""
COUNTING_UP = """
    passing = piece
    for step in range(n - 1):
        owner = (rank + step + 1) % n
        pieces[owner] = passing = pass_on(passing, piece.new_empty(lengths[owner]))
"""
THROUGH_RANK_0 = """
    if rank == 0:
        for r in range(1, n):
            pieces[r] = piece.new_empty(lengths[r])
            dist.recv(pieces[r], group=group, group_src=r)
        for r in range(1, n):
            dist.send(torch.cat(pieces), group=group, group_dst=r)
    else:
        dist.send(piece, group=group, group_dst=0)
        whole = piece.new_empty(sum(lengths))
        dist.recv(whole, group=group, group_src=0)
        pieces = list(whole.split(lengths))
"""

# How an answer is wrong, and the name under which it is refused.
WRONG = {
    "torch's own, with objects": (
        f"def {NAME}(piece, group):\n"
        "    pieces = [None] * group.size()\n"
        "    dist.all_gather_object(pieces, piece, group=group)\n    return pieces\n",
        "ready-made collective",
    ),
    "everybody's is as long as mine": (
        changed((ROUND_OF_LENGTHS, ""), ("    lengths = [int(k) for k in lengths]\n", ""))
        .replace("lengths[coming])", "len(piece))"),
        "lengths not sent",
    ),
    "the length of another": (
        changed(("piece.new_empty(lengths[coming])", "piece.new_empty(lengths[going])")),
        "length of another piece",
    ),
    "padded to the longest": (
        changed(
            (PIECES_ROUND, PADDED),
            ("return pieces", "return [p[:k] for p, k in zip(pieces, lengths)]"),
        ),
        "padded",
    ),
    "padded and left so": (changed((PIECES_ROUND, PADDED)), "padding left in"),
    "straight to everybody": (changed((PIECES_ROUND, STRAIGHT)), "straight to everybody"),
    "all through rank 0": (changed((PIECES_ROUND, THROUGH_RANK_0)), "all through one rank"),
    "all lengths in each message": (
        changed(
            (
                ROUND_OF_LENGTHS,
                "    known = torch.zeros(n, dtype=torch.long)\n"
                "    known[rank] = len(piece)\n"
                "    for step in range(n - 1):\n"
                "        known += pass_on(known, torch.empty_like(known)) * (known == 0)\n"
                "    lengths = known\n",
            )
        ),
        "over budget",
    ),
    "each piece in two halves": (
        changed(
            (
                "pieces[coming] = pass_on(pieces[going], piece.new_empty(lengths[coming]))",
                "k, room = lengths[going] // 2, piece.new_empty(lengths[coming])\n"
                "        pass_on(pieces[going][:k], room[: len(room) // 2])\n"
                "        pass_on(pieces[going][k:], room[len(room) // 2 :])\n"
                "        pieces[coming] = room",
            )
        ),
        "too many messages",
    ),
    "in the order of arrival": (
        changed(
            ("return pieces", "return [pieces[(rank - step) % n] for step in range(n)]"),
        ),
        "order of arrival",
    ),
    "one buffer for all": (
        changed(
            ("    lengths = [int(", "    room = piece.new_empty(100)\n    lengths = [int("),
            ("piece.new_empty(lengths[coming])", "room[: lengths[coming]]"),
            ("pass_on(pieces[going],", "pass_on(pieces[going].clone(),"),
        ),
        "one buffer",
    ),
    "counting up": (changed((PIECES_ROUND, COUNTING_UP)), "right for two only"),
    "joined": (changed(("return pieces", "return torch.cat(pieces)")), "joined into one"),
    "without its own": (
        changed(("return pieces", "return pieces[:rank] + pieces[rank + 1 :]")),
        "not a piece of each rank",
    ),
    "nothing returned": (changed(("return pieces", "pieces")), "nothing returned"),
    "rounded to float32": (
        changed(("return pieces", "return [one.float() for one in pieces]")),
        "another dtype",
    ),
    "room of another dtype": (
        changed(("piece.new_empty(lengths[coming])", "torch.empty(lengths[coming])")),
        "no room",
    ),
    "the input made longer": (
        changed(
            (
                PIECES_ROUND,
                "    piece.resize_(max(lengths))\n"
                + PIECES_ROUND.replace("lengths[coming]", "max(lengths)"),
            ),
            ("return pieces", "return [p[:k].clone() for p, k in zip(pieces, lengths)]"),
        ),
        "input changed",
    ),
    "an empty one is not sent": (
        changed(
            (
                "        sending = dist.isend(going, group=group, group_dst=(rank + 1) % n)\n",
                "        if len(going):\n"
                "            sending = dist.isend(going, group=group, group_dst=(rank + 1) % n)\n",
            ),
            ("        sending.wait()\n", "        if len(going):\n            sending.wait()\n"),
        ),
        "empty piece",
    ),
    "the notebook's own rank": (
        changed(("n, rank = group.size(), group.rank()", "n = group.size()")),
        "not of the group",
    ),
}  # fmt: skip


def cell(folder: Path, name: str, kind: str) -> str:
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-{kind}")


def judged(desk: Desk, source: str) -> frame.Verdict:
    return desk.check(NAME, {NAME: source})


def test_the_reference_answer_is_right(desk):
    source = cell(SOLUTIONS, NAME, "answer").split("\n", 1)[1]
    verdict = judged(desk, source)
    assert (verdict.outcome, verdict.points, verdict.name) == ("right", 4, ""), str(verdict)


def test_lengths_and_pieces_may_travel_in_turns(desk):
    both = """
def all_gather_uneven(piece, group):
    n, rank = group.size(), group.rank()
    pieces = [None] * n
    pieces[rank] = piece
    for step in range(n - 1):
        going = pieces[(rank - step) % n]
        room = torch.zeros(1, dtype=torch.long)
        flight = [dist.isend(torch.tensor([len(going)]), group=group, group_dst=(rank + 1) % n)]
        dist.recv(room, group=group, group_src=(rank - 1) % n)
        if len(going):
            flight.append(dist.isend(going, group=group, group_dst=(rank + 1) % n))
        arrival = piece.new_empty(room.item())
        if len(arrival):
            dist.recv(arrival, group=group, group_src=(rank - 1) % n)
        [one.wait() for one in flight]
        pieces[(rank - step - 1) % n] = arrival
    return tuple(pieces)
"""
    assert judged(desk, both).outcome == "right"


@pytest.mark.parametrize("mistake", likeliest(WRONG))
def test_a_plausible_mistake_is_refused_by_its_name(desk, mistake):
    source, name = WRONG[mistake]
    verdict = judged(desk, source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


def test_mistakes_of_different_kinds_go_by_different_names():
    assert len({name for _, name in WRONG.values()}) == len(WRONG)


def test_a_blank_function_is_not_attempted(desk):
    blank = cell(EXERCISES, NAME, "answer").split("\n", 1)[1]
    verdict = judged(desk, blank)
    assert (verdict.outcome, verdict.points) == ("not attempted", 0)


def blocks(case: str) -> tuple[str, str]:
    """The cell of a case in the notebook, and what its three ranks showed."""
    source = cell(SOLUTIONS, "who_hangs", case)
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
