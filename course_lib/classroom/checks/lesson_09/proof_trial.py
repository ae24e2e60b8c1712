"""What runs on the judge's ranks for `is_sharded`: the answer's verdict on one box after another.

Lesson 09.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_09.proof_boxes import OTHERS, SHARDED, Box
from course_lib.memory import held


def warm() -> None:
    """Take the first use of an optimizer, which loads much."""
    part = nn.Parameter(torch.zeros(2))
    part.grad = torch.ones(2)
    optimizer = torch.optim.AdamW([part])
    optimizer.step()
    held(optimizer)


def ask(function: Callable, seed: int, group: dist.ProcessGroup) -> dict:
    """The verdict on each box, in an order that is no pattern and the same on all ranks."""
    kinds = [*SHARDED, *OTHERS]
    made = torch.Generator().manual_seed(seed)
    verdicts = {}
    for number in torch.randperm(len(kinds), generator=made).tolist():
        box = Box(kinds[number], seed + number, group)
        out, _ = bench.watched(lambda box=box: function(box, group))
        one = out.item() if isinstance(out, torch.Tensor) and out.numel() == 1 else out
        verdicts[kinds[number]] = (type(out).__name__, one if isinstance(one, bool) else None)
    return {"verdicts": verdicts}
