"""What runs on the judge's ranks for `same_way`: layers that come by a gather, asked for by wish.

Each gather carries the number of its layer, so that ranks which mean different ones get a note and
not a hang. Lesson 11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_11.meter import Meter, is_plain
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group
from course_lib.memory.watch import Watch

LAYERS, CALLS = 7, 3


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
    that all want, one that two want, one that a rank wants alone, and one that no rank wants."""
    some = [{0, 4, 1}, {0, 4, 2}, {0, 5, 3}]
    return [[i in {order[k] for k in some[rank]} for i in range(LAYERS)] for rank in range(n)]


def _second(n: int, order: list[int]) -> list[list[bool]]:
    """One rank wants nothing, the next two layers, a third one of them."""
    some = [set(), {order[6], order[4]}, {order[4]}]
    return [[i in some[rank % 3] for i in range(LAYERS)] for rank in range(n)]


def layer(x: Tensor, weight: Tensor) -> Tensor:
    return x + torch.tanh(x @ weight.T)


class Unit:
    """One layer's weight, cut: `gather()` gives it whole, `free()` takes it away again."""

    def __init__(self, number: int, weight: Tensor, group: Group, log: dict, meter: Meter):
        n, rank = group.size(), group.rank()
        flat = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % n))
        piece = flat.chunk(n)[rank]
        self.number, self.shape, self.group, self.log = number, weight.shape, group, log
        self.meter = meter
        self.piece = torch.cat((piece, piece.new_tensor([float(number)])))
        self.whole: Tensor | None = None

    def gather(self) -> Tensor:
        self.log["kept"] = max(self.log["kept"], self.meter.now(1))
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


def run(function: Callable, group: Group, sizes: Sequence[int], seed: int) -> dict:
    """Some batches, one after another, with other wishes each time."""
    n, rank = group.size(), group.rank()
    given = numbers(Sizes(*sizes), n, seed)
    calls = []
    with Watch() as watch:
        for x, wanted in zip(given.xs, given.wanted, strict=True):
            meter = Meter(watch, given.weights[0].nbytes)
            log = {"gathered": [], "mixed": [], "now": 0, "most": 0, "kept": 0}
            units = [Unit(i, w, group, log, meter) for i, w in enumerate(given.weights)]
            own, wish, all_of_them = x[rank].clone(), list(wanted[rank]), list(units)
            with torch.no_grad():
                out, sent = bench.watched(lambda o=own, w=wish, u=units: function(o, w, u, group))
            good = is_plain(out) and out.shape == own.shape and out.dtype == own.dtype
            same = torch.equal(own, x[rank]) and wish == list(wanted[rank])
            calls.append(
                {
                    **bench.described(out),
                    "out": out.detach().clone() if good else None,
                    "changed": not (same and units == all_of_them),
                    "sent": sent,
                    **log,
                    "left": meter.now(0),
                }
            )
            if log["mixed"] or not good:
                break
    return {"kind": calls[0]["kind"], "calls": calls}
