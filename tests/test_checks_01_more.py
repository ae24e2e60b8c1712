"""The three hangs that lesson 01 asks about: three real ranks run the cells of the notebook."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.cluster import Cluster, Ended

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions" / "01_collectives"


def cell(folder: Path, name: str, kind: str) -> str:
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-{kind}")


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
