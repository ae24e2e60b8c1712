"""Lesson 04's harness: an MLP's parts traced one by one, a backward timed, five steps of training.

`trace` says which collectives fell into which part; `backward_of` when the all-reduce of dX and the
product for dW ran.
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
    """Run the parts of a layer: the output, the input's gradient, and each part's records.

    A part's records are a pair, those of its forward and those of its backward.
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
    """A bar of a timeline that is no collective."""

    op: str
    start: float
    end: float
    waits: tuple = ()


class Products(TorchDispatchMode):
    """Notes the shape of each matrix product, and when it began and ended.

    torch hands every operation to an active TorchDispatchMode, in the backward too.
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
    """The span of dX's all-reduce and the bar of the product for dW, of one backward."""
    y = layer(x.detach().clone().requires_grad_())
    dist.barrier()
    with ledger() as book, Products() as products:
        y.sum().backward()
    shape = tuple(layer.weight.shape)
    found = [times for of, *times in products.seen if of == shape]
    if len(found) != 1:
        raise ValueError(
            f"{len(found)} products of the backward have dW's shape {shape}; with as many tokens "
            "as the rank has outputs, dX has it too: take another number of tokens"
        )
    [span] = book.spans()
    return span, Bar("dW", *found[0])


def quickest(by_rank: Sequence[Sequence[Sequence]]) -> list[list]:
    """Of all ranks' backwards, the one that took the least time from its first bar to its last."""

    def duration(run) -> float:
        bars = [bar for pair in run for bar in pair]
        return max(bar.end for bar in bars) - min(bar.start for bar in bars)

    return [list(pair) for pair in min(zip(*by_rank, strict=True), key=duration)]


def train(mlp: nn.Module, steps: int = 5, hidden: int = 24, seed: int = 6) -> list[Tensor]:
    """AdamW in float64 on random data: the output and the input's gradient of each step."""
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
