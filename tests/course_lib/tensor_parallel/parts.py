"""What the tests of a cut model share: random tensors, which numbers a rank holds, how equal.

Where a rank's numbers lie in the dense model is read off a marked twin: its parameters hold their
own indices, the same plan is laid over it, and what is left says who holds what. So the oracle
knows nothing of the rules by which the library cuts.
"""

from __future__ import annotations

import copy
import zlib

import torch
import torch.distributed as dist
from torch import nn

from course_lib import ranks
from course_lib.ledger import Book, ledger

BOUND = 1e-10  # of float64, relative to the largest number
WORLDS = [2, 3, 4]  # one rank alone is in the tests of whole models


def made(label, *shape, dtype=torch.float64, device=None, grad=False):
    """Random numbers that depend on the label and the shape alone: the same on every rank."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{label} {shape}".encode()))
    x = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return x.to(device or torch.get_default_device(), dtype).requires_grad_(grad)


def close(label, got, want, bound=BOUND):
    assert got is not None, f"{label}: nothing came"
    assert got.shape == want.shape, f"{label}: {tuple(got.shape)}, not {tuple(want.shape)}"
    assert got.dtype == want.dtype, f"{label}: {got.dtype}, not {want.dtype}"
    if got.numel():
        want = want.cpu() if got.device.type == "cpu" else want  # a state_dict is on the host
        off = (got.detach() - want.detach()).abs().max().item()
        scale = max(1.0, want.detach().abs().max().item())
        assert off <= bound * scale, f"{label}: off by {off:.3g} where {scale:.3g} is the largest"


def randomized(model: nn.Module, label, scale=0.3) -> nn.Module:
    """The model in float64 with random numbers everywhere: no bias of zeros, no norm of ones."""
    model.double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(made((label, name), *p.shape).to(p.device) * scale)
            if p.dim() == 1 and name.endswith("weight"):  # a norm's
                p.add_(1.0)
    return model


def held(dense: nn.Module, lay) -> dict[str, torch.Tensor]:
    """For every parameter of the model that `lay` makes: the indices that it holds of the dense."""
    twin = copy.deepcopy(dense).double()
    with torch.no_grad():
        for p in twin.parameters():
            p.copy_(torch.arange(p.numel(), dtype=p.dtype, device=p.device).view(p.shape))
    made = lay(twin)
    return {name: p.detach().round().long() for name, p in made.named_parameters()}


def part(whole: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return whole.detach().reshape(-1)[index]


def same_parameters(label, cut, dense, where, bound=BOUND):
    whole = dict(dense.named_parameters())
    assert set(where) == set(whole), set(where) ^ set(whole)
    for name, p in cut.named_parameters():
        close(f"{label}: {name}", p, part(whole[name], where[name]), bound)


def same_gradients(label, cut, dense, where, bound=BOUND):
    whole = dict(dense.named_parameters())
    for name, p in cut.named_parameters():
        assert whole[name].grad is not None, f"{label}: the dense {name} has no gradient"
        close(f"{label}: grad of {name}", p.grad, part(whole[name].grad, where[name]), bound)


def fewer(where, dense) -> int:
    """How many numbers this rank does not hold: that something was cut at all."""
    return sum(p.numel() for p in dense.parameters()) - sum(i.numel() for i in where.values())


class Momentum:
    """Gradient descent with momentum; torch's optimizers bring its compiler along, and seconds."""

    def __init__(self, model: nn.Module, lr=0.1):
        self.parameters, self.lr = [p for p in model.parameters() if p.requires_grad], lr
        self.velocities = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self):
        for p, velocity in zip(self.parameters, self.velocities, strict=True):
            p.sub_(self.lr * velocity.mul_(0.9).add_(p.grad))
            p.grad = None


def three_steps(label, dense, cut, where, group, shape) -> Book:
    """Three steps of both modules on one batch of `shape`: y, dX, all gradients and the weights
    after each. The messages of the last one."""
    descents = Momentum(dense), Momentum(cut)
    for step in range(3):
        x = made(("x", label, step), *shape, device=next(dense.parameters()).device, grad=True)
        mine = x.detach().clone().requires_grad_()
        owed = made(("owed", label, step), *shape, device=x.device)
        want = dense(x)
        want.backward(owed)
        with ledger(axes={"tp": group}) as book:
            got = cut(mine)
            got.backward(owed)
        close(f"{label}: y", got, want)
        close(f"{label}: dX", mine.grad, x.grad)
        same_gradients(label, cut, dense, where)
        for descent in descents:
            descent.step()
        same_parameters(f"{label} after {step + 1} steps", cut, dense, where)
    return book


def group_of(me, members):
    return dist.group.WORLD if members is None else ranks.new_group(me, list(members))


def chunks(total: int, n: int) -> list[int]:
    """How long torch.chunk's pieces are, 0 for those that it does not make."""
    lengths = [len(piece) for piece in torch.empty(total, 1).chunk(n)] if total else []
    return lengths + [0] * (n - len(lengths))


def own(whole: torch.Tensor, group, dim=-1) -> torch.Tensor:
    """This rank's piece as torch.chunk cuts, which leaves the last ranks nothing if need be."""
    return whole.split(chunks(whole.shape[dim], group.size()), dim)[group.rank()]


def said(kind, call, *args, **options) -> str:
    """The message of the error that the call has to raise."""
    try:
        call(*args, **options)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} with {args} {options} raised no {kind}")
