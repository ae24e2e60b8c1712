"""Optimizers for the tests of elementwise.py: some treat every element for itself, some do not."""

from __future__ import annotations

import random

import torch
from torch import Tensor
from torch.optim import Optimizer


class Base(Optimizer):
    """Plain descent; a class below says by `direction` what is subtracted, times lr."""

    def __init__(self, params, lr: float = 0.1, **more):
        super().__init__(params, {"lr": lr, **more})
        self.calls = 0

    def every(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    def before(self) -> None:
        """What is computed once a step, of all parameters together."""

    def direction(self, p: Tensor, group: dict) -> Tensor:
        return p.grad

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        self.before()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * self.direction(p, group))


# ---- not elementwise
class GlobalNorm(Base):
    """Clips by the norm of all gradients that it knows."""

    def before(self):
        squares = [p.grad.square().sum() for p in self.every()]
        self.scale = 1 / (1 + torch.stack(squares).sum().sqrt()) if squares else 1.0

    def direction(self, p, group):
        return p.grad * self.scale


class Distance(Base):
    """As Prodigy and D-Adaptation: one length of step for all, which begins tiny and grows."""

    def before(self):
        self.d, self.top = getattr(self, "d", 1e-6), getattr(self, "top", 0.0)
        below = 1e-12
        for p in self.every():
            rate = self.d * self.param_groups[0]["lr"]
            state = self.state[p]
            first = state.setdefault("first", p.detach().clone())
            total = state.setdefault("total", torch.zeros_like(p)).add_(p.grad * rate)
            self.top += float((p.grad * (first - p)).sum()) * rate
            below += float(total.abs().sum())
        self.d = max(self.d, self.top / below)

    def direction(self, p, group):
        return self.d * p.grad.sign()


class Tiny(Base):
    """Steps of a millionth, along a gradient without its mean."""

    def direction(self, p, group):
        return 1e-8 * (p.grad - p.grad.mean()).sign()


class TrustRatio(Base):
    """As LAMB and LARS: a step as long as the parameter's norm says."""

    def direction(self, p, group):
        return p.grad * p.norm() / (p.grad.norm() + 1e-6)


class EveryFifth(Base):
    """Looks at rows in every fifth step alone."""

    def direction(self, p, group):
        if self.calls % 5 or p.dim() < 2:
            return p.grad
        return p.grad / (p.grad.norm(dim=-1, keepdim=True) + 1e-6)


class EveryTwelfth(Base):
    """Looks at the sum of the gradient, for the first time in step 12."""

    def direction(self, p, group):
        return p.grad if self.calls < 12 else p.grad - p.grad.mean()


class FactoredAbove(Base):
    """As Adafactor: from 10,000 elements on a matrix' second moment is kept by row and column."""

    def direction(self, p, group):
        square = p.grad.square() + 1e-8
        if p.numel() > 10_000 and p.dim() == 2:
            rows, columns = square.mean(1, keepdim=True), square.mean(0, keepdim=True)
            square = rows * columns / rows.mean()
        return p.grad / square.sqrt()


class NormAbove(Base):
    """A numel threshold, whatever the shape."""

    def direction(self, p, group):
        return p.grad / (p.grad.norm() + 1e-6) if p.numel() > 10_000 else p.grad


class Above(Base):
    """Each element for itself, and half as fast where a parameter, or its first dim, is large."""

    def __init__(self, params, above: int, rows: bool = False):
        super().__init__(params, above=above, rows=rows)

    def direction(self, p, group):
        size = p.numel() if not group["rows"] else p.shape[0] if p.dim() == 2 else 0
        return p.grad / 2 if size > group["above"] else p.grad


class Biggest(Base):
    """Each element for itself, and the largest parameter twice as fast."""

    def direction(self, p, group):
        return p.grad * 2 if p is max(self.every(), key=torch.Tensor.numel) else p.grad


class RowMean(Base):
    """Subtracts each row's mean from a matrix' gradient, and leaves vectors as they are."""

    def direction(self, p, group):
        return p.grad - p.grad.mean(1, keepdim=True) if p.dim() == 2 else p.grad


class Kernels(Base):
    """Looks at convolutions' kernels alone."""

    def direction(self, p, group):
        return p.grad / (p.grad.norm() + 1e-6) if p.dim() == 4 else p.grad


class TopK(Base):
    """Updates the half of a parameter whose gradient is largest."""

    def direction(self, p, group):
        least = p.grad.abs().flatten().sort().values[p.numel() // 2]
        return torch.where(p.grad.abs() >= least, p.grad, 0.0)


class SignOfMean(Base):
    """One bit of a whole parameter decides."""

    def direction(self, p, group):
        return p.grad * (1.0 + p.grad.mean().sign())


class CountsParameters(Base):
    """Its rate falls with every parameter that it updates."""

    def direction(self, p, group):
        self.seen = getattr(self, "seen", 0) + 1
        return p.grad / self.seen


class NumbersParameters(Base):
    """The later in the list, the smaller the step."""

    def direction(self, p, group):
        place = next(i for i, q in enumerate(self.every()) if q is p)
        return p.grad / (1 + place)


class Noise(Base):
    """Draws from torch's generator, which all parameters share."""

    def direction(self, p, group):
        return p.grad + torch.randn_like(p)


class Coin(Base):
    """Draws once a step from Python's generator."""

    def before(self):
        self.coin = random.random()

    def direction(self, p, group):
        return p.grad * self.coin


class OwnNoise(Base):
    """Draws from a generator of its own."""

    def __init__(self, params, **more):
        super().__init__(params, **more)
        self.generator = torch.Generator().manual_seed(3)

    def direction(self, p, group):
        return p.grad + torch.rand(p.shape, generator=self.generator).to(p.device)


class SkipsZeros(Base):
    """Lets a parameter rest whose gradient is all zeros, momentum and all."""

    def direction(self, p, group):
        if not bool(p.grad.any()):
            return torch.zeros_like(p)
        m = self.state[p].setdefault("m", torch.zeros_like(p))
        return m.mul_(0.9).add_(p.grad).clone()


class ClipsWhatIsLarge(Base):
    """Looks at the norm where a gradient is large alone."""

    def direction(self, p, group):
        norm = p.grad.norm()
        return p.grad * 50 / norm if norm / p.numel() ** 0.5 > 30 else p.grad


class OtherGroups(Base):
    """Each group is scaled by the gradients of the others."""

    def before(self):
        self.total = sum(float(p.grad.abs().sum()) for p in self.every())

    def direction(self, p, group):
        own = sum(float(q.grad.abs().sum()) for q in group["params"] if q.grad is not None)
        return p.grad * (1 + own / (self.total + 1e-6))


class Blocks(Base):
    """As 8-bit optimizers: rounds in blocks of 256 elements, by the largest of a block."""

    def direction(self, p, group):
        flat = p.grad.flatten()
        blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % 256)).view(-1, 256)
        most = blocks.abs().amax(1, keepdim=True) + 1e-12
        rounded = (blocks / most * 127).round() / 127 * most
        return rounded.flatten()[: flat.numel()].view_as(p)


class Raises(Base):
    """Wants matrices."""

    def direction(self, p, group):
        return p.grad @ torch.eye(p.shape[1], device=p.device)


class Rests(Base):
    """Does nothing for its first hundred steps."""

    def direction(self, p, group):
        return p.grad if self.calls > 100 else torch.zeros_like(p)


# ---- elementwise
class Lion(Base):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), decay=0.1):
        super().__init__(params, lr, betas=betas, decay=decay)

    def direction(self, p, group):
        m = self.state[p].setdefault("m", torch.zeros_like(p))
        a, b = group["betas"]
        update = (a * m + (1 - a) * p.grad).sign() + group["decay"] * p
        m.mul_(b).add_(p.grad, alpha=1 - b)
        return update


class OwnAdamW(torch.optim.AdamW):
    """A subclass that computes what its parent does."""


class Clipping(torch.optim.SGD):
    """Each element of the gradient for itself, then as the parent does."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.clamp_(-1, 1)
        return super().step(closure)


class Counts(Base):
    """Counts its steps in an attribute, and decays by them."""

    def direction(self, p, group):
        return p.grad / self.calls


class EveryFifthDecays(Base):
    def direction(self, p, group):
        return p.grad if self.calls % 5 else p.grad + 0.1 * p


class Table(Base):
    """Counts in a dict, a list and a tensor, which a trial has to leave alone."""

    def __init__(self, params, **more):
        super().__init__(params, **more)
        self.table, self.past, self.number = {"steps": 0}, [], torch.zeros(())

    def before(self):
        self.table["steps"] += 1
        self.past.append(self.calls)
        self.number += 1

    def direction(self, p, group):
        return p.grad / (self.table["steps"] + len(self.past) + float(self.number))


class GroupCounts(Base):
    def direction(self, p, group):
        group["count"] = group.get("count", 0) + 1 if p is group["params"][0] else group["count"]
        return p.grad / group["count"]


class WithStates(Base):
    """Makes its states at once, as Adagrad does."""

    def __init__(self, params, **more):
        super().__init__(params, **more)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["sum"] = torch.full_like(p, 0.5)
                self.state[p]["step"] = torch.tensor(0.0)

    def direction(self, p, group):
        total = self.state[p]["sum"].add_(p.grad.square())
        return p.grad / total.sqrt()


class Lookahead(Optimizer):
    """Around another optimizer, whose groups it shares; goes half the way back every fifth step."""

    def __init__(self, inner: Optimizer):
        self.inner, self.count = inner, 0
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("slow", p.detach().clone())
        self.inner.step()
        self.count += 1
        if self.count % 5 == 0:
            for group in self.param_groups:
                for p in group["params"]:
                    p.copy_(self.state[p]["slow"].lerp_(p, 0.5))


class NoEpsilon(Base):
    """Divides 0 by 0 where a gradient is zero: the same NaN in a shard."""

    def direction(self, p, group):
        return p.grad / p.grad.abs()


class DecaysAlone(Base):
    """Weight decay without a gradient's help."""

    def direction(self, p, group):
        return 0.1 * p


class EpochOfHooks(Base):
    """Has a step that a schedule has put its own function around."""

    def __init__(self, params, **more):
        super().__init__(params, **more)
        torch.optim.lr_scheduler.LambdaLR(self, lambda step: 0.5**step)
