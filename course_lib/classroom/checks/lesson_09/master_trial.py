"""What runs on the judge's ranks for `master_step`: steps smaller than a rounding. Lesson 09."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_09.each import value_of
from course_lib.collectives.call import Group
from course_lib.layout import flat
from course_lib.memory import held, peak
from course_lib.memory.settled import wait_until_settled

STEPS, RATE, MOMENTUM = 6, 2e-4, 0.9


def warm() -> None:
    """Take the first use of an optimizer, which loads much, and of the meter."""
    part = nn.Parameter(torch.zeros(2))
    part.grad = torch.ones(2)
    with peak():
        optimizer_of(part).step()


def optimizer_of(part: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD([part], lr=RATE, momentum=MOMENTUM)


def start(seed: int, n: int) -> tuple[Tensor, int]:
    """The model's numbers in bfloat16, padded for n ranks, and how many are no padding."""
    made = torch.Generator().manual_seed(seed)
    total = 400 * n + 1
    values = torch.zeros(flat(total, n).padded, dtype=torch.bfloat16)
    sign = torch.randint(2, (total,), generator=made) * 2 - 1
    values[:total] = sign * (0.5 + 2 * torch.rand(total, generator=made))
    return values, total


def gradients(seed: int, n: int, step: int) -> Tensor:
    """(n, padded), bf16: each rank's own. Their sums have no rounding; some numbers rest, and some
    move by less than a hundred-thousandth of what they are."""
    _, total = start(seed, n)
    made = torch.Generator().manual_seed(seed * 31 + step)
    whole = torch.zeros(n, flat(total, n).padded)
    # Off the middle: updates that are lost would have added up.
    whole[:, :total] = torch.randint(-2, 13, (n, total), generator=made).float()
    whole[:, total // 4 : total // 2] = 0
    whole[:, total // 2 : total * 5 // 8] /= 512
    return whole.bfloat16()


def train(function: Callable, group: Group, seed: int, meter: bool) -> list[dict]:
    """Steps by the answer, each with what it left behind and sent; by `meter`, what it keeps."""
    n, rank, reports = group.size(), group.rank(), []
    numbers = start(seed, n)[0]
    shard = len(numbers) // n
    master = nn.Parameter(numbers[rank * shard :][:shard].float())
    optimizer, place = optimizer_of(master), numbers.data_ptr()
    for step in range(STEPS):
        given = gradients(seed, n, step)[rank].clone()
        # The meter looks at every tensor there is, which takes a while: the first step will do
        with peak() if meter and not step else nullcontext() as p:
            out, facts = bench.watched(
                lambda given=given: function(numbers, given, master, optimizer, group)
            )
        if p is not None:
            wait_until_settled()
        kept = [] if p is None else [one.nbytes() for one in p.made_and_alive()]
        whole = numbers.shape == (n * shard,) and numbers.dtype == torch.bfloat16
        count = value_of(out)
        reports.append({
            "kind": bench.kind(out),
            "out": int(count) if count is not None and count == count // 1 else None,
            "master": master.detach().float().clone() if len(master) == shard else None,
            "numbers": numbers.clone() if whole and numbers.data_ptr() == place else None,
            "bytes": facts["bytes"],
            "kept": sum(kept),
            "largest": max(kept, default=0),
            "state": held(optimizer).by_kind["optimizer states"],
            "knows": any(p is master for g in optimizer.param_groups for p in g["params"]),
            "mixed": not _rests(function, group),
        })  # fmt: skip
    return reports


def _rests(function: Callable, group: Group) -> bool:
    """Whether a step of another, small model without gradients changes nothing and counts none."""
    numbers = torch.ones(2 * group.size(), dtype=torch.bfloat16)
    master = nn.Parameter(torch.ones(2))
    with_zeros = (numbers, torch.zeros_like(numbers), master, optimizer_of(master), group)
    out, _ = bench.watched(lambda: function(*with_zeros))
    return value_of(out) == 0 and bool((numbers == 1).all() and (master == 1).all())
