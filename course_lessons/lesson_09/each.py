"""Common parts of lesson 09's exercises: trials on both groups, and parsing of results."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from course_classroom.judge import bench
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import THREE, TWO, fresh_seed


def warm() -> None:
    """Use optimizers once, because their first use loads much code."""
    part = nn.Parameter(torch.zeros(2))
    part.grad = torch.ones(2)
    torch.optim.SGD([part], lr=0.1, momentum=0.9).step()
    torch.optim.AdamW([part]).step()


def judged(
    function: Callable, look: Callable[[list, str, int], None]
) -> Callable[[Answer, Judge], None]:
    """Return a judge that tries `function(answer, group, seed)` on three ranks, then on two ranks
    that are not the first two, and looks at the reports of each."""

    def judge_it(answer: Answer, judge: Judge) -> None:
        judge.take(answer, function.__module__, __name__)
        seed = fresh_seed()
        for members in (THREE, TWO):
            when = on(members)
            look(judge.trial(answer, function, seed, members=members, when=when), when, seed)

    return judge_it


def value_of(out: object) -> float | bool | None:
    """Return a number or a bool, possibly unwrapped by `item()`; None for anything else."""
    try:
        one = out.item() if hasattr(out, "item") else out
    except Exception:  # many numbers, none, or an error of the object
        return None
    return one if isinstance(one, bool) else bench.number(one)


def names_of(said: object) -> set | None:
    """Return a set of names from a collection or from a dictionary of name -> bool, or None."""
    if isinstance(said, dict):
        return {name for name, yes in said.items() if yes}
    if isinstance(said, (set, frozenset, list, tuple)) and all(isinstance(s, str) for s in said):
        return set(said)
    return None
