"""What the checks of lesson 02 run on the judge's ranks: an answer on this rank's parts of a case.

A case is a whole product of random numbers, the same on every rank from one seed; the judge makes
it too and compares.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup as Group

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_01.trial import CALLS, alive, spoilt
from course_lib.layout import span

COLUMNS, ROWS = "columns", "rows"
STEPS = 3
Sizes = Sequence[int]  # b, h and f


class Product(NamedTuple):
    """Y = X W + bias with a gradient dY, whole."""

    x: Tensor  # (b, h)
    weight: Tensor  # (h, f)
    bias: Tensor  # (f,)
    dy: Tensor  # (b, f)

    def mine(self, way: str, n: int, rank: int) -> Product:
        """The parts that one rank holds of it."""
        h, f = self.weight.shape
        own = slice(*span(f if way == COLUMNS else h, n, rank))
        parts = (self.x[:, own], self.weight[own], self.bias, self.dy)
        if way == COLUMNS:
            parts = (self.x, self.weight[:, own], self.bias[own], self.dy[:, own])
        return Product(*(part.clone() for part in parts))

    def double(self) -> Product:
        """The same numbers in float64."""
        return Product(*(part.double() for part in self))


def product(b: int, h: int, f: int, seed: int, dtype: str = "float64") -> Product:
    """Random numbers, none of them zero; whole ones in float32, so that it computes exactly."""
    made = torch.Generator().manual_seed(seed)
    shapes = ((b, h), (h, f), (f,), (b, f))
    numbers = [torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes]
    if dtype == "float32":
        return Product(*((part.abs().ceil() * part.sign()).float() for part in numbers))
    return Product(*numbers)


def gradients(
    function: Callable, group: Group, way: str, sizes: Sizes, seed: int, dtype: str
) -> list[dict]:
    """Call `function(x, weight, dy, group, way)` twice; each time it returns (dX, dW, db)."""

    def call(k: int) -> tuple[dict, object]:
        mine = product(*sizes, seed + k, dtype).mine(way, group.size(), group.rank())
        given = {"x": mine.x, "weight": mine.weight, "dy": mine.dy}
        with torch.no_grad():  # by hand: autograd has nothing to offer here
            return called(lambda: function(*given.values(), group, way), given)

    return twice(call, group)


def twice(call: Callable[[int], tuple[dict, object]], group: Group) -> list[dict]:
    """The reports of two calls, or of one that has spoilt its group."""
    calls = [call(0)]
    while len(calls) < len(CALLS) and not spoilt(group):
        calls.append(call(len(calls)))
    return alive(*zip(*calls, strict=True))


def steps(
    function: Callable, group: Group, sizes: Sizes, seed: int, lr: float, dtype: str, count: int
) -> list[dict]:
    """Call `function(x, weight, bias, target, lr, group)` for `count` steps of each of two layers.

    It returns (Y, weight, bias), and that comes back to it in the next step of that layer. The
    layers take their steps in turns; the reports are in the order of the calls.
    """
    n, rank = group.size(), group.rank()
    seeds = [seed + STEPS * k for k in range(len(CALLS))]
    held = [product(*sizes, one, dtype).mine(ROWS, n, rank)[1:3] for one in seeds]
    calls = []
    for step, k in itertools.product(range(count), range(len(CALLS))):
        data, (weight, bias) = product(*sizes, seeds[k] + step, dtype).mine(ROWS, n, rank), held[k]
        wanted = [list(part.shape) for part in (data.dy, weight, bias)]
        with torch.no_grad():
            step_of = partial(function, data.x, weight, bias, data.dy, lr, group)
            calls.append(called(step_of, {"x": data.x, "target": data.dy}))
        # What does not fit is refused later; until then this rank goes on, for the others' sake.
        if calls[-1][0]["shapes"] == wanted:
            weight, bias = (part.clone() for part in calls[-1][0]["entries"][1:])
        held[k] = (weight, bias)
        if spoilt(group):
            break
    return alive(*zip(*calls, strict=True))


def called(action: Callable[[], object], given: Mapping[str, Tensor]) -> tuple[dict, object]:
    """What came back from an answer that returns a tuple of tensors: as a report, and as it is."""
    before = {name: (tensor.clone(), tensor.requires_grad) for name, tensor in given.items()}
    outs: list[object] = []

    def keep(*_: object) -> object:
        outs.append(action())
        return outs[-1]

    report = bench.report_list(keep, torch.empty(0), None)
    changed = [
        name
        for name, (old, wanted_grad) in before.items()
        if given[name].requires_grad != wanted_grad
        or given[name].shape != old.shape
        or not torch.equal(given[name], old)
    ]
    return {**report, "changed": " and ".join(changed)}, outs[-1]
