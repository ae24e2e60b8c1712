"""What every rank reports: one order of looks, and numbers however they are wrapped. Lesson 09."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.words import Words


def warm() -> None:
    """Take the first use of optimizers, which load much."""
    part = nn.Parameter(torch.zeros(2))
    part.grad = torch.ones(2)
    torch.optim.SGD([part], lr=0.1, momentum=0.9).step()
    torch.optim.AdamW([part]).step()


def refuse_each(
    says: Words, reports: Sequence[Mapping], looks: Mapping[str, Callable], **about: object
) -> None:
    """Raise the entry whose look is true of a rank's report; the report fills in its words."""
    for rank, report in enumerate(reports):
        for entry, look in looks.items():
            if look(report):
                raise says(entry, **{**report, **about, "rank": rank})


def value_of(out: object) -> float | bool | None:
    """A number or a yes or no, however it is wrapped; None where it is something else."""
    try:
        one = out.item() if hasattr(out, "item") else out
    except Exception:  # many numbers, none, or whatever an object does when it is asked
        return None
    return one if isinstance(one, bool) else bench.number(one)


def names_of(said: object) -> set | None:
    """A set, a list or anything else of names; a dictionary from names to yes or no."""
    if isinstance(said, dict):
        return {name for name, yes in said.items() if yes}
    if isinstance(said, (set, frozenset, list, tuple)) and all(isinstance(s, str) for s in said):
        return set(said)
    return None
