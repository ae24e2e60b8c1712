"""What the checks of lesson 02 run on the judge's ranks: an answer on this rank's parts of a case.

A case is a whole product of random numbers, the same on every rank from one seed; the judge makes
it too and compares. What an answer returns is described before it is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.layout import span

COLUMNS, ROWS = "columns", "rows"
STEPS = 3
_MOST = 10_000  # elements of a tensor that the judge wants to see


class Product(NamedTuple):
    """Y = X W + bias with a gradient dY, whole."""

    x: Tensor  # (b, h)
    weight: Tensor  # (h, f)
    bias: Tensor  # (f,)
    dy: Tensor  # (b, f)

    def mine(self, way: str, n: int, rank: int) -> Product:
        """The parts that one rank holds of it."""
        h, f = self.weight.shape
        if way == COLUMNS:
            own = slice(*span(f, n, rank))
            parts = (self.x, self.weight[:, own], self.bias[own], self.dy[:, own])
        else:
            own = slice(*span(h, n, rank))
            parts = (self.x[:, own], self.weight[own], self.bias, self.dy)
        return Product(*(part.clone() for part in parts))


def product(b: int, h: int, f: int, seed: int) -> Product:
    """Random numbers in float64; nothing in them is zero or alike."""
    made = torch.Generator().manual_seed(seed)
    shapes = ((b, h), (h, f), (f,), (b, f))
    return Product(*(torch.randn(s, generator=made, dtype=torch.float64) for s in shapes))


def gradients(
    function: Callable, way: str, sizes: Sequence[int], seed: int, group: dist.ProcessGroup
) -> dict:
    """Call `function(x, weight, dy, group, way)`, which returns (dX, dW, db)."""
    mine = product(*sizes, seed).mine(way, group.size(), group.rank())
    given = {"x": mine.x, "weight": mine.weight, "dy": mine.dy}
    with torch.no_grad():  # by hand: autograd has nothing to offer here
        return called(lambda: function(mine.x, mine.weight, mine.dy, group, way), given)


def steps(
    function: Callable, sizes: Sequence[int], seed: int, lr: float, group: dist.ProcessGroup
) -> list[dict]:
    """Call `function(x, weight, bias, target, lr, group)` for three steps, each on new numbers.

    It returns (Y, weight, bias), and that comes back to it in the next step.
    """
    n, rank = group.size(), group.rank()
    first = product(*sizes, seed).mine(ROWS, n, rank)
    weight, bias = first.weight, first.bias
    reports = []
    for step in range(STEPS):
        data = product(*sizes, seed + step).mine(ROWS, n, rank)
        given = {"x": data.x, "target": data.dy}
        wanted = [data.dy.shape, weight.shape, bias.shape]
        with torch.no_grad():
            report = called(partial(function, data.x, weight, bias, data.dy, lr, group), given)
        reports.append(report)
        # What does not fit is refused later; until then this rank goes on, for the others' sake.
        if report["shapes"] == [list(shape) for shape in wanted]:
            weight, bias = (part.clone() for part in report["entries"][1:])
    return reports


def initial(
    function: Callable, h: int, f: int, way: str, seed: int, group: dist.ProcessGroup
) -> dict:
    """Call `function(h, f, way, group)` with the generator set alike on every rank.

    It returns (weight, bias). `next` are the values that the generator gives after it.
    """
    torch.manual_seed(seed)
    report = called(lambda: function(h, f, way, group), {})
    return {**report, "next": torch.rand(3, dtype=torch.float64)}


def called(action: Callable[[], object], given: Mapping[str, Tensor]) -> dict:
    """What came back from an answer that returns a tuple of tensors, and what it did on the way."""
    before = {name: (tensor.clone(), tensor.requires_grad) for name, tensor in given.items()}
    out, facts = bench.watched(action)
    entries = list(out) if isinstance(out, (list, tuple)) else []
    tensors = [one for one in entries if isinstance(one, Tensor)]
    small = [one.detach() if one.numel() < _MOST else None for one in tensors]
    return {
        **facts,
        "kind": type(out).__name__,
        "kinds": [type(one).__name__ for one in entries],
        "shapes": [list(one.shape) for one in tensors],
        "dtypes": [str(one.dtype).removeprefix("torch.") for one in tensors],
        "entries": [None if one is None else one.to("cpu").clone() for one in small],
        "kept": [one.untyped_storage().nbytes() for one in tensors],
        "changed": [
            name
            for name, (old, wanted_grad) in before.items()
            if given[name].requires_grad != wanted_grad
            or given[name].shape != old.shape
            or not torch.equal(given[name], old)
        ],
    }
