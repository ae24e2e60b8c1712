"""What runs on the judge's ranks for `generate_together`: a forward that needs a whole group.

A rank whose answer has returned goes on to answer the others' gathers, and says that it has left:
what would hang ends in a note in milliseconds. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group

STOP, WORDS = 1000, 50  # the stop is no small number: each is an object of its own
CASES, LIMITED, NOTHING = 5, 2, 4
HERE, LEFT = 1.0, 0.0
ENDLESS = 60  # forwards of one call: far more than any rank may ask for


class Prompt(NamedTuple):
    """What one rank is asked for."""

    ids: list[int]
    most: int  # new tokens
    seed: int  # of its own continuation

    def next(self, ids: list[int]) -> int:
        """The model's token after `ids`: never STOP before `length` tokens, and STOP there."""
        made = len(ids) - len(self.ids)
        if made == self.length - 1:
            return int(str(STOP))
        return 1 + (self.seed + 7 * sum(ids) + 13 * len(ids)) % (WORDS - 1)

    @property
    def length(self) -> int:
        """New tokens until the model says STOP, which is one of them; it may be above `most`."""
        return 1 + self.seed % 11

    def wanted(self) -> list[int]:
        ids = list(self.ids)
        for _ in range(min(self.most, self.length)):
            ids.append(self.next(ids))
        return ids

    @property
    def forwards(self) -> int:
        return min(self.most, self.length)


def prompts(n: int, seed: int) -> list[list[Prompt]]:
    """[case][rank]: another rank is the longest in each case, up to its stop or, in every second
    one, up to its limit. In the first two the others meet their stop, then their limit, then they
    want nothing; in the last no rank wants anything. Prompts may have stops in them, at the end
    too."""
    r = Random(seed)
    made = []
    for case in range(CASES):
        longest = (case + seed) % n
        row = []
        for rank in range(n):
            length = r.randint(8, 11) if rank == longest else r.randint(2, 5)
            most = length + r.randint(1, 9)
            if rank == longest and case % 2:
                most, length = length - 1, 11
            if rank != longest and case >= LIMITED:
                most = r.randint(1, length - 1) if case == LIMITED else 0
            most = 0 if case == NOTHING else most
            ids = [r.randint(1, WORDS - 1) for _ in range(r.randint(1, 6))]
            if (case + rank) % 2:
                ids += r.choice(([STOP], [STOP, r.randint(1, WORDS - 1), STOP]))
            row.append(Prompt(ids, most, 11 * r.randint(1, 900) + length - 1))
        made.append(row)
    return made


class Left(Exception):
    """A rank asked for a forward, and another one had ended."""


class Forward:
    """`forward(ids)`: the token after ids, of a model whose weights come by a gather."""

    def __init__(self, prompt: Prompt, group: Group):
        self.prompt, self.group = prompt, group
        self.calls, self.alone, self.odd = 0, [], ""

    def __call__(self, ids: list[int]) -> int:
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            self.odd = type(ids).__name__
            raise TypeError("forward takes a list of whole numbers with at least one in it")
        self.calls += 1
        if self.calls > ENDLESS:
            raise RuntimeError(f"{ENDLESS} forwards, and no rank is asked for so many")
        state = self._gather(HERE)
        gone = [rank for rank, where in enumerate(state) if where == LEFT]
        if gone:
            self.alone = gone
            raise Left(f"ranks {gone} have ended")
        return self.prompt.next(ids)

    def rest(self) -> None:
        """This rank has ended: answer what the others still ask for, until all have."""
        while any(self._gather(LEFT)):
            pass

    def _gather(self, where: float) -> list[float]:
        return all_gather(torch.tensor([where]), self.group).tolist()


def run(function: Callable, group: Group, seed: int) -> dict:
    """Each case of a seed, with fresh prompts on every rank."""
    rank, reports = group.rank(), []
    for row in prompts(group.size(), seed):
        own = row[rank]
        forward, given = Forward(own, group), list(own.ids)
        report: dict = {"kind": "", "out": None, "error": ""}
        try:
            out, facts = bench.watched(
                lambda g=given, f=forward, o=own: function(g, f, o.most, STOP, group)
            )
        except Left:
            out, facts = None, {"ops": {}, "bytes": 0}
        report["kind"] = type(out).__name__
        if isinstance(out, list) and all(type(i) is int for i in out):
            report["out"] = list(out)
        if isinstance(out, Tensor):
            report["kind"] = f"Tensor of shape {list(out.shape)}"
        gathers = facts["ops"].get("all_gather", 0)
        report |= {
            "changed": given != own.ids,
            "calls": forward.calls,
            "alone": forward.alone,
            "others": sum(facts["ops"].values()) - min(gathers, forward.calls),
            "bytes": facts["bytes"],
        }
        forward.rest()
        reports.append(report)
        if any(all_gather(torch.tensor([float(bool(forward.alone))]), group).tolist()):
            break
    return {"kind": reports[0]["kind"], "cases": reports}
