"""Lesson 03's harness: vectors of three spaces, and a program run forward and transposed.

`Spaces` makes the ranks' parts of random vectors and computes their inner products. The functions
run a map or a chain of maps both ways under a ledger, or a training loop.
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
    """Return random float64 elements that depend only on the seed, so all ranks draw the same."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=made, dtype=torch.float64).to(device)


def leaf(t: Tensor) -> Tensor:
    """Return a copy of the tensor that collects a gradient."""
    return t.detach().clone().requires_grad_()


def gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference between corresponding elements, or 0 for empty pieces."""
    return (a - b).abs().max().item() if a.numel() else 0.0


class Spaces:
    """This rank's parts of random (m, width) vectors: replicated, partial or sharded."""

    def __init__(self, group: Group, sizes: Sequence[int], width: int, device="cpu"):
        self.n, self.rank = size_and_rank(group)
        self.group, self.sizes, self.width, self.device = group, list(sizes), width, device

    def vector(self, space: str, seed: int) -> Tensor:
        """Return this rank's part of a random vector: the full vector, a term, or a piece."""
        term = 1 + self.rank if space == PARTIAL else 0
        full = normal(sum(self.sizes), self.width, seed=seed + term, device=self.device)
        return full.split(self.sizes)[self.rank].clone() if space == SHARDED else full

    def inner(self, a: Tensor, b: Tensor, space: str) -> Tensor:
        """Return ⟨a, b⟩ in that space, counted once if replicated, else summed over the ranks."""
        here = (a * b).sum().detach()
        return here if space == REPLICATED else all_reduce(here, self.group)

    def equal(self, a: Tensor) -> bool:
        """Return True if all ranks hold the same elements."""
        return gap(self.n * a, all_reduce(a, self.group)) < 1e-10

    def least(self, op: str) -> int | float:
        """Return the bytes that this rank must send in a collective, by lesson 01's closed form."""
        full, piece = (rows * self.width * 8 for rows in (sum(self.sizes), self.sizes[self.rank]))
        return {
            "nothing": 0,
            "all_reduce": forms.all_reduce(self.n, full),
            "all_gather": forms.all_gather(self.n, piece),
            "reduce_scatter": forms.reduce_scatter(full, piece),
        }[op]


def both_ways(M: Callable, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Book, Book]:
    """Return M x and Mᵀ y, and the ledgers of the forward and the backward pass."""
    x = leaf(x)
    with ledger() as forward:
        Mx = M(x)
    with ledger() as backward:
        (MTy,) = torch.autograd.grad(Mx, x, y)
    return Mx.detach(), MTy, forward, backward


def there_and_back(program: Mapping[str, Callable], x: Tensor, gradient_of: Callable):
    """Run a program, then its transpose; return x's gradient, and the messages of each step.

    `gradient_of(y)` is the loss's gradient for the last output. The messages are a triple for each
    step: its name, and the ledger's spans of its forward and of its backward pass.
    """
    graph = []
    for name, step in program.items():
        x = leaf(x)  # a graph of only this step
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
    """Run SGD on the mean squared error in place; return the losses. Gradients add up in x.grad."""
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
