"""Lesson 03's harness: vectors of the three spaces, and a program run forward and transposed.

`Spaces` makes random vectors as the ranks of a group hold them and takes their inner products; the
rest runs a map, a chain of maps or a training loop both ways, each under a ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from course_lib.collectives import all_reduce
from course_lib.collectives.call import Group, size_and_rank
from course_lib.ledger import forms, ledger
from course_lib.ledger.book import Book

REPLICATED, PARTIAL, SHARDED = "replicated", "partial", "sharded"


def normal(*shape: int, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """(shape) random float64 elements that depend on the seed alone: the same on every rank."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made, dtype=torch.float64).to(device)


def leaf(t: Tensor) -> Tensor:
    """A copy of the tensor that collects a gradient."""
    return t.detach().clone().requires_grad_()


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference of two elements; 0 where a rank's pieces are empty."""
    return (a - b).abs().max().item() if a.numel() else 0.0


class Spaces:
    """Random (m, width) vectors as this rank holds them, replicated, partial or sharded."""

    def __init__(self, group: Group, sizes: Sequence[int], width: int, device="cpu"):
        self.n, self.rank = size_and_rank(group)
        self.group, self.sizes, self.width, self.device = group, list(sizes), width, device

    def vector(self, space: str, seed: int) -> Tensor:
        """This rank's part of a random vector: all of it, a term of a sum, or a piece."""
        term = 1 + self.rank if space == PARTIAL else 0
        full = normal(sum(self.sizes), self.width, seed=seed + term, device=self.device)
        return full.split(self.sizes)[self.rank].clone() if space == SHARDED else full

    def inner(self, a: Tensor, b: Tensor, space: str) -> Tensor:
        """⟨a, b⟩ in that space: counted once where replicated, else added up over the ranks."""
        here = (a * b).sum().detach()
        return here if space == REPLICATED else all_reduce(here, self.group)

    def equal(self, a: Tensor) -> bool:
        """Whether all ranks hold the same elements."""
        return gap(self.n * a, all_reduce(a, self.group)) < 1e-10

    def least(self, op: str) -> int | float:
        """Bytes that this rank has to send in that collective, by the closed form of lesson 01."""
        full, piece = (rows * self.width * 8 for rows in (sum(self.sizes), self.sizes[self.rank]))
        return {
            "nothing": 0,
            "all_reduce": forms.all_reduce(self.n, full),
            "all_gather": forms.all_gather(self.n, piece),
            "reduce_scatter": forms.reduce_scatter(full, piece),
        }[op]


def both_ways(M: Callable, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Book, Book]:
    """M x and Mᵀ y, and the ledgers of the forward and of the backward."""
    x = leaf(x)
    with ledger() as forward:
        Mx = M(x)
    with ledger() as backward:
        (MTy,) = torch.autograd.grad(Mx, x, y)
    return Mx.detach(), MTy, forward, backward


def there_and_back(program: Mapping[str, Callable], x: Tensor, gradient_of: Callable):
    """Run a program, then its transpose, step by step: x's gradient, and what each step sent.

    `gradient_of(y)` is the loss's gradient of the last output. What was sent is a triple for each
    step: its name, the ledger's spans of its forward, those of its backward.
    """
    graph = []
    for name, step in program.items():
        x = leaf(x)  # a graph of this step alone
        with ledger() as book:
            y = step(x)
        graph.append((name, x, y, book.spans()))
        x = y
    dy, sent = gradient_of(y.detach()), []
    for name, x, y, there in reversed(graph):
        with ledger() as book:
            (dy,) = torch.autograd.grad(y, x, dy)
        sent.insert(0, (name, there, book.spans()))
    return dy, sent


def train(forward: Callable, weights: Sequence[Tensor], x: Tensor, target: Tensor, steps: int = 3):
    """SGD on the mean squared error, in place: the losses; x's gradients add up in x.grad."""
    losses = []
    for _ in range(steps):
        loss = ((forward(x, *weights) - target) ** 2).mean()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for weight in weights:
                weight -= 0.2 * weight.grad
                weight.grad = None
    return losses
