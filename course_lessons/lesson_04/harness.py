"""Lesson 04's harness: traces of an MLP's parts, a timed backward pass, and five training steps.

`trace` assigns the collectives to the parts; `backward_of` returns the times of dX's all-reduce and
dW's product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.ledger import ledger


def trace(parts: Sequence[Callable], x: Tensor, dy: Tensor):
    """Run the parts of a layer; return output, input gradient, and the records of each part.

    A part's records are a pair: the records of its forward and of its backward pass.
    """
    edges, ends, backs = [x.detach().clone().requires_grad_()], [0], {}
    with ledger() as book:
        for part in parts:
            edges.append(part(edges[-1]))
            ends.append(book.count())
        for i, edge in enumerate(edges):  # called when this edge's gradient is ready
            edge.register_hook(lambda _, i=i: backs.update({i: book.count()}))
        edges[-1].backward(dy)
    made = [
        (book.records[ends[i] : ends[i + 1]], book.records[backs[i + 1] : backs[i]])
        for i in range(len(parts))
    ]
    return edges[-1].detach(), edges[0].grad, made


class Bar(NamedTuple):
    """A bar of a timeline that is not a collective."""

    op: str
    start: float
    end: float
    waits: tuple = ()


class Products(TorchDispatchMode):
    """A recorder of each matrix product's shape, start and end.

    torch passes every operation to an active TorchDispatchMode, including backward operations.
    """

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        began = perf_counter()
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            self.seen.append((tuple(out.shape), began, perf_counter()))
        return out


def backward_of(layer: nn.Module, x: Tensor):
    """Return the span of dX's all-reduce and the bar of dW's product in one backward pass."""
    y = layer(x.detach().clone().requires_grad_())
    dist.barrier()
    with ledger() as book, Products() as products:
        y.sum().backward()
    shape = tuple(layer.weight.shape)
    found = [times for of, *times in products.seen if of == shape]
    if len(found) != 1:
        raise ValueError(
            f"{len(found)} products of the backward pass have dW's shape {shape}. With as many "
            "tokens as outputs on the rank, dX has it too, so use a different number of tokens"
        )
    [span] = book.spans()
    return span, Bar("dW", *found[0])


def quickest(by_rank: Sequence[Sequence[Sequence]]) -> list[list]:
    """Return the run with the shortest time from first to last bar over all ranks."""

    def duration(run) -> float:
        bars = [bar for pair in run for bar in pair]
        return max(bar.end for bar in bars) - min(bar.start for bar in bars)

    return [list(pair) for pair in min(zip(*by_rank, strict=True), key=duration)]


def train(mlp: nn.Module, steps: int = 5, hidden: int = 24, seed: int = 6) -> list[Tensor]:
    """Train with AdamW in float64 on random data; return each step's output and input gradient."""
    device = next(mlp.parameters()).device
    made = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(mlp.parameters(), lr=0.01)
    seen = []
    for _ in range(steps):
        data = torch.randn(2, 2, 7, hidden, generator=made, dtype=torch.float64)
        inputs, targets = data.to(device)
        inputs.requires_grad_()
        outputs = mlp(inputs)
        optimizer.zero_grad()
        ((outputs - targets) ** 2).mean().backward()
        optimizer.step()
        seen += [outputs.detach(), inputs.grad]
    return seen
