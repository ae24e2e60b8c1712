"""What runs on the judge's ranks for `is_sharded`: the answer's verdict on one box after another.

Lesson 09.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_09.proof_boxes import OF_TWO, OTHERS, SHARDED, Box
from course_lib.memory import held


def warm() -> None:
    """Take the first use of an optimizer, which loads much."""
    part = nn.Parameter(torch.zeros(2))
    part.grad = torch.ones(2)
    optimizer = torch.optim.AdamW([part])
    optimizer.step()
    held(optimizer)


def ask(function: Callable, group: dist.ProcessGroup, seed: int) -> dict:
    """The verdict on each box, in an order that is no pattern and the same on all ranks."""
    kinds = OF_TWO if group.size() == 2 else (*SHARDED, *OTHERS)
    made = torch.Generator().manual_seed(seed)
    verdicts = {}
    for number in torch.randperm(len(kinds), generator=made).tolist():
        box = Box(kinds[number], seed + number, group)
        out, _ = bench.watched(lambda box=box: function(box, group))
        verdicts[kinds[number]] = (bench.kind(out), yes_or_no(out))
    return {"verdicts": verdicts}


def yes_or_no(out: object) -> bool | None:
    """A verdict, of Python, numpy or torch; None where it is something else."""
    try:
        one = out.item() if hasattr(out, "item") else out
    except Exception:  # many numbers, none, or whatever an object does when it is asked
        return None
    return one if isinstance(one, bool) else None
