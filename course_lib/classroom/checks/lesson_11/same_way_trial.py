"""What runs on the judge's ranks for `same_way`: layers that come by a gather, asked for by wish.

Each gather carries the number of its layer, so that ranks which mean different ones get a note and
not a hang. Lesson 11.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group

LAYERS, CALLS = 5, 3


class Sizes(NamedTuple):
    b: int
    h: int


class Numbers(NamedTuple):
    """The same on every rank, and on the judge."""

    weights: Tensor  # (layer, h, h)
    xs: Tensor  # (call, n, b, h)
    wanted: list[list[list[bool]]]  # [call][rank][layer]


def numbers(sizes: Sizes, n: int, seed: int) -> Numbers:
    made = torch.Generator().manual_seed(seed)
    weights = torch.randn((LAYERS, sizes.h, sizes.h), generator=made, dtype=torch.float64)
    xs = torch.randn((CALLS, n, sizes.b, sizes.h), generator=made, dtype=torch.float64)
    order = torch.randperm(LAYERS, generator=made).tolist()
    return Numbers(weights, xs, [_first(n, order), _second(n, order), [[False] * LAYERS] * n])


def _first(n: int, order: list[int]) -> list[list[bool]]:
    """As many for each rank, and different ones: on their own ways they would never notice. One
    that all want, and one that no rank wants."""
    wishes = []
    for rank in range(n):
        some = {order[0], order[1 + rank % 3], order[1 + (rank + 1) % 3]}
        wishes.append([i in some for i in range(LAYERS)])
    return wishes


def _second(n: int, order: list[int]) -> list[list[bool]]:
    """One rank wants nothing, the next two layers, a third one of them."""
    some = [set(), {order[3], order[4]}, {order[4]}]
    return [[i in some[rank % 3] for i in range(LAYERS)] for rank in range(n)]


def layer(x: Tensor, weight: Tensor) -> Tensor:
    return x + torch.tanh(x @ weight.T)


class Unit:
    """One layer's weight, cut: `gather()` gives it whole, `free()` takes it away again."""

    def __init__(self, number: int, weight: Tensor, group: Group, log: dict):
        n, rank = group.size(), group.rank()
        flat = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % n))
        piece = flat.chunk(n)[rank]
        self.number, self.shape, self.group, self.log = number, weight.shape, group, log
        self.piece = torch.cat((piece, piece.new_tensor([float(number)])))
        self.whole: Tensor | None = None

    def gather(self) -> Tensor:
        every = all_gather(self.piece[None], self.group)  # (n, piece and the layer's number)
        asked = [int(number) for number in every[:, -1].tolist()]
        self.log["gathered"].append(self.number)
        if set(asked) != {self.number}:
            self.log["mixed"].append((len(self.log["gathered"]), asked))
        weight = every[:, :-1].reshape(-1)[: self.shape.numel()].view(self.shape).clone()
        if self.whole is None:
            self.log["now"] += 1
            self.log["most"] = max(self.log["most"], self.log["now"])
        self.whole = weight
        return weight

    def free(self) -> None:
        if self.whole is not None:
            self.whole.untyped_storage().resize_(0)
            self.whole = None
            self.log["now"] -= 1


def run(function: Callable, sizes: Sizes, seed: int, group: Group) -> dict:
    """Some batches, one after another, with other wishes each time."""
    n, rank = group.size(), group.rank()
    given = numbers(sizes, n, seed)
    calls = []
    for x, wanted in zip(given.xs, given.wanted, strict=True):
        log = {"gathered": [], "mixed": [], "now": 0, "most": 0}
        units = [Unit(i, weight, group, log) for i, weight in enumerate(given.weights)]
        own, wish = x[rank].clone(), list(wanted[rank])
        with torch.no_grad():
            out, sent = bench.watched(lambda o=own, w=wish, u=units: function(o, w, u, group))
        good = isinstance(out, Tensor) and out.shape == own.shape and out.dtype == own.dtype
        calls.append(
            {
                "kind": type(out).__name__,
                "shape": list(out.shape) if isinstance(out, Tensor) else None,
                "out": out.detach().clone() if good else None,
                "changed": not torch.equal(own, x[rank]) or wish != list(wanted[rank]),
                "sent": sent,
                **log,
            }
        )
        if log["mixed"] or not good:
            break
    return {"kind": calls[0]["kind"], "calls": calls}
