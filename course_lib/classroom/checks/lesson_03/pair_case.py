"""What lesson 03's checks share: a trial of a pair, what float32 rounds, what is no answer.

`conjugates.py` tries the pair alone, `pair_in_use.py` among others; `gathers.py` tries a gather.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_03.trial import numbers


class Trial(NamedTuple):
    """One run of the learner's pair on a group, and what each rank reports of it."""

    members: list[int]
    seed: int
    shape: list[int]
    reports: list[dict]
    when: str

    @property
    def n(self) -> int:
        return len(self.members)

    def each(self, name: str, shape: list[int] | None = None) -> list[Tensor]:
        """The numbers of that name, of every rank."""
        return [
            numbers(self.seed, name, r, *(self.shape if shape is None else shape))
            for r in range(self.n)
        ]

    def same(self, name: str, shape: list[int] | None = None) -> Tensor:
        """The numbers of that name which all ranks hold."""
        return numbers(self.seed, name, 0, *(self.shape if shape is None else shape))


def nearly(seen: Tensor | None, wanted: Tensor) -> bool:
    """Whether two are equal but for what float32 rounds away."""
    if seen is None or seen.shape != wanted.shape:
        return False
    return torch.allclose(seen, wanted, rtol=1e-4, atol=1e-4)


def refuse_ready_made(answer: Answer) -> None:
    """A Finding where the answer takes the pairs out of the library's own file."""
    for cell in answer.cells:
        for node in ast.walk(ast.parse(cell)):
            names = [one.name for one in getattr(node, "names", []) if isinstance(one, ast.alias)]
            names += [getattr(node, "module", None) or ""]
            if any("tensor_parallel" in name for name in names):
                raise Finding(
                    "ready-made pair",
                    "It imports from course_lib.tensor_parallel, where these pairs stand ready. "
                    "Write the backward yourself, with torch.autograd.Function.",
                )
