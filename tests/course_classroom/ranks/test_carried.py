"""What of a learner's cells a judge gets: what the answer needs, in whatever form it is written."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_classroom.judge import answer
from course_classroom.ranks.carried import defined_names


def read(*cells: str) -> answer.Answer:
    sources: dict[str, str] = {}
    for cell in cells:
        sources.update(dict.fromkeys(defined_names(cell), cell))
    return answer.read("double", sources)


def result(found: answer.Answer, x: int) -> object:
    """What the answer makes of x where nothing but the carried cells has been run."""
    namespace: dict = {"torch": torch, "dist": dist}
    for cell in found.cells:
        exec(compile(cell, "cell", "exec"), namespace)
    return namespace["double"](x)


NEEDS = """
## a cell of imports alone
import math
from functools import reduce as fold
---
def double(x):
    return fold(lambda a, b: a + b, [x, x]) + 0 * math.pi
## a lambda
twice = lambda x: x + x
---
def double(x):
    return twice(x)
## the answer as a lambda
double = lambda x: x + x
## the answer by a call
from functools import partial
double = partial(lambda k, x: k * x, 2)
## a table that grows
RULES = dict()
RULES[1] = lambda x: x
for k in range(2, 4):
    RULES[k] = lambda x, k=k: k * x
MORE = []
MORE.append(0)
---
def double(x):
    return RULES[2](x) + MORE[0]
## a dataclass
from dataclasses import dataclass


@dataclass
class Pair:
    a: int
---
def double(x):
    return Pair(2 * x).a
## an import that may fail
try:
    from no_such_package import twice
except ImportError:
    def twice(x):
        return 2 * x
---
def double(x):
    return twice(x)
## a value made of a value
HALF = max(1, 1)
TWO = HALF + HALF
TABLE = [TWO] * 3
---
def double(x):
    return TABLE[0] * x
## a class with its state
class Twice:
    def __call__(self, x):
        return 2 * x
---
double = Twice()
## defined twice
def double(x):
    ...


def double(x):
    return 2 * x
## a function and a table in one cell
def double(x):
    return SIZES.get('k') * x


SIZES = dict(k=2)
print(double(3))
## what a later cell has bound anew
import math


def twice(x):
    return 3 * x
---
def twice(x):
    return 2 * x
---
def double(x):
    return int(math.sqrt(1)) * twice(x)
"""
CASES = {
    how: cells.split("---\n")
    for how, _, cells in (case.partition("\n") for case in NEEDS.split("## ")[1:])
}


@pytest.mark.parametrize("how", CASES)
def test_what_an_answer_needs_goes_with_it(how):
    found = read(*CASES[how])
    assert found.attempted
    assert result(found, 21) == 42


def test_a_constant_that_rests_on_what_is_left_out_is_left_out():
    trial = "x, sizes = torch.ones(3), cut(7, world)\npieces = (x, sizes)\n"
    answers = "def double(x, sizes=2):\n    pieces = (x, x)\n    return sum(pieces)\n"
    found = read(trial, answers)
    assert "".join(found.cells).strip() == answers.strip()
    found = read("pieces = (missing, 1)\nTWO = 2\n", "def double(x):\n    return TWO * x\n")
    assert "missing" not in "".join(found.cells)
    assert result(found, 21) == 42


@pytest.mark.parametrize(
    "trial",
    [
        "y = double(torch.ones(2))\nprint(y)",
        "work = dist.all_reduce(x, async_op=True)",
        "for k in range(3):\n    print(double(k))",
        "with torch.no_grad():\n    double(1)",
        "assert double(1) == 2",
    ],
)
def test_a_trial_stays_out(trial):
    found = read(f"def double(x):\n    return 2 * x\n\n\n{trial}\n")
    assert "".join(found.cells).strip() == "def double(x):\n    return 2 * x"


def test_values_of_the_learners_ranks_and_new_parts_of_torch_stay_out():
    ranks = "sums = [r for r in range(world)]\nw = dist.get_rank()\n"
    found = read(ranks, "def double(x):\n    return sums\n")
    assert "".join(found.cells).strip() == "def double(x):\n    return sums"
    cell = "dist.all_reduce = None\ntorch.zeros = max\ndef double(x):\n    return torch.zeros(1)\n"
    assert "=" not in "".join(read(cell).cells)


@pytest.mark.parametrize(
    "blank", ["def double(x):\n    ...\n", "double = ...\n", "double = None\n"]
)
def test_a_blank_is_a_blank_in_every_form(blank):
    assert not read(blank).attempted
