"""A model that is no GPT: buffers, a tied weight, a frozen one, an unused one, a single number."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import ranks, zero
from tests.course_lib.tensor_parallel.parts import randomized

ROWS = 12  # of the global batch


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 5)
        self.norm = nn.BatchNorm1d(5)
        self.back = nn.Linear(5, 7)
        self.again = nn.Linear(7, 5)
        self.again.weight = self.first.weight
        self.frozen = nn.Linear(5, 3).requires_grad_(False)
        self.unused = nn.Parameter(torch.zeros(3, 11))
        self.factor = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("mask", torch.ones(5, dtype=torch.bool))
        self.register_buffer("counts", torch.arange(4))
        self.register_buffer("own", torch.ones(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:  # (b, 7) -> (b, 3)
        y = self.norm(self.first(x)).tanh()
        z = self.again(self.back(y)) * self.factor
        return self.frozen(z * self.mask)


OPTIMIZERS: dict[str, Callable] = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.02),
    "amsgrad": lambda groups: torch.optim.AdamW(groups, lr=0.02, amsgrad=True),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.05),
}


@contextlib.contextmanager
def odd_engine(
    me: ranks.Me, stage: int, kind: str, seed: str = "start", **options
) -> Iterator[tuple[zero.Engine, DeviceMesh]]:
    """Over all ranks as replicas. Its statistics are not of the batch, which ranks share."""
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    model = randomized(Odd(), seed).double().eval()
    draw = torch.Generator().manual_seed(len(seed))
    with torch.no_grad():
        model.norm.running_mean.copy_(torch.rand(5, generator=draw))
        model.norm.running_var.copy_(1 + torch.rand(5, generator=draw))
        model.mask.copy_(torch.arange(5) != len(seed) % 5)
        model.counts.add_(len(seed))
    wide = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    rest = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = OPTIMIZERS[kind](groups)
    with zero.engine(model, optimizer, stage=stage, mesh=mesh, **options) as engine:
        yield engine, mesh


def odd_losses(engine: zero.Engine, first: int, count: int) -> list[float]:
    """The mean loss of the global batch at each step."""
    group, found = engine.group, []
    dtype = next(p.dtype for p in engine.module.parameters())
    for step in range(first, first + count):
        draw = torch.Generator().manual_seed(step)
        x = torch.rand(ROWS, 7, generator=draw, dtype=torch.float64)[group.rank() :: group.size()]
        loss = engine(x.to(dtype)).square().sum()
        engine.backward(loss, tokens=len(x))
        engine.step()
        total = loss.detach().double()
        torch.distributed.all_reduce(total, group=group)
        found.append(total.item() / ROWS)
    return found
