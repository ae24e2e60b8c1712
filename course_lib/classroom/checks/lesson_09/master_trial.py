"""What runs on the judge's ranks for `master_step`: steps smaller than a bf16 rounding.

Beside the right master copy are kept those that each known wrong idea would have by now. Lesson
09.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.collectives import all_gather
from course_lib.layout import flat
from course_lib.memory import held, peak

STEPS, RATE, MOMENTUM = 6, 2e-4, 0.9
SLACK = 16  # numbers of 8 bytes beside the two messages: a count
IDEAS = (
    "its own gradient", "a sum", "divided twice", "from bf16", "to bf16", "added up",
    "another shard",
)  # fmt: skip


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


class Reading:
    """A master copy of all numbers, as an idea would have it."""

    def __init__(self, idea: str, values: Tensor, n: int):
        self.idea, self.n = idea, n
        self.total: Tensor | None = None
        self.part = nn.Parameter(values.float())
        self.optimizer = optimizer_of(self.part)

    def step(self, own: Tensor) -> None:
        """`own` (n, padded) are the ranks' gradients."""
        mean = own.float().mean(0)
        self.total = mean if self.total is None else self.total + mean
        shards = own.float().view(self.n, self.n, -1)  # of rank, of owner
        if self.idea == "its own gradient":
            mean = torch.stack([shards[r, r] for r in range(self.n)]).flatten()
        elif self.idea == "a sum":
            mean = mean * self.n
        elif self.idea == "divided twice":
            mean = mean / self.n
        elif self.idea == "another shard":
            mean = shards[:, 0].mean(0).repeat(self.n)
        with torch.no_grad():
            if self.idea == "from bf16":
                self.part.copy_(self.part.bfloat16().float())
        self.part.grad = self.total if self.idea == "added up" else mean
        self.optimizer.step()
        with torch.no_grad():
            if self.idea == "to bf16":
                self.part.copy_(self.part.bfloat16().float())


def train(function: Callable, group: dist.ProcessGroup, seed: int, meter: bool) -> dict:
    """Steps by the answer, each with what it left behind and sent; by `meter`, what it keeps."""
    n, rank = group.size(), group.rank()
    values, total = start(seed, n)
    numbers = values.clone()
    shard = len(values) // n
    mine = slice(rank * shard, (rank + 1) * shard)
    master = nn.Parameter(values[mine].float())
    optimizer = optimizer_of(master)
    known = {idea: Reading(idea, values, n) for idea in ("right", *IDEAS)}
    steps, kept, lost = [], 0, 0
    place = numbers.data_ptr()
    for step in range(STEPS):
        own = gradients(seed, n, step)
        given, before = own[rank].clone(), numbers.clone()
        old = master.detach().clone()
        # The meter looks at every tensor there is, which takes a while: the first step will do
        with peak() if meter and not step else nullcontext() as p:
            out, facts = bench.watched(
                lambda given=given: function(numbers, given, master, optimizer, group)
            )
        kept = kept if p is None else p.held_after
        for one in known.values():
            one.step(own)
        masters = all_gather(master.detach(), group)  # (padded,)
        moved = all_gather((master.detach() != old).to(torch.uint8), group).bool()
        far = ~torch.isclose(master.detach(), old)
        far = all_gather(far.to(torch.uint8), group).bool()
        want, stays = masters.bfloat16(), numbers == before
        right = int((moved & (want == before)).sum())
        lost += right
        most = float((known["right"].part.detach()[mine] - old).abs().max())
        steps.append(
            {
                "kind": bench.kind(out),
                "out": _whole(out),
                "master": [
                    idea for idea, one in known.items() if _close(master, one.part[mine], most)
                ],
                "still": bool((master.detach() == old).all()),
                "flat": torch.equal(numbers, want),
                "own flat": torch.equal(numbers[mine], want[mine]),
                "old flat": torch.equal(numbers, before),
                "counts": {
                    "right": int((moved & (want == before)).sum()),
                    "own": int((moved & (want == before))[mine].sum()),
                    "unchanged": int((want == before).sum()),
                    "unchanged, no padding": int((want == before)[:total].sum()),
                    "pulled": int(((own.float().mean(0) != 0) & (want == before)).sum()),
                    "so far": lost,
                    "in bf16": int(torch.tensor(float(right)).bfloat16()),
                    "far": int((far & (want == before)).sum()),
                    "moved": int(moved.sum()),
                    "not lost": int((want != before).sum()),
                    "own, times n": n * int((moved & (want == before))[mine].sum()),
                },
                "stays": int(stays.sum()),
                "bytes": facts["bytes"],
                "state": held(optimizer).by_kind["optimizer states"],
                "knows": any(p is master for g in optimizer.param_groups for p in g["params"]),
                "in place": numbers.data_ptr() == place and numbers.dtype == torch.bfloat16,
            }
        )  # fmt: skip
    return {"steps": steps, "kept": kept, "numbers": len(values), "shard": shard}


def _whole(out: object) -> int | None:
    """The count, if it is one."""
    found = bench.number(out)
    return int(found) if found is not None and abs(found) < 1e15 and int(found) == found else None


def _close(got: Tensor, want: Tensor, moved: float) -> bool:
    """As the idea has it, up to the rounding of a gradient in 16 bits."""
    return float((got - want).detach().abs().max()) <= 0.02 * moved + 1e-9
