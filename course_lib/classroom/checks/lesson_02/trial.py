"""What the checks of lesson 02 run on the judge's ranks: an answer on this rank's parts of a case.

A case is a whole product of random numbers, the same on every rank from one seed; the judge makes
it too and compares. What an answer returns is described before it is believed.
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
from course_lib.classroom.checks.lesson_01.trial import CALLS, spoilt
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
    function: Callable, group: Group, way: str, sizes: Sequence[int], seed: int, dtype: str
) -> list[dict]:
    """Call `function(x, weight, dy, group, way)` twice; each time it returns (dX, dW, db)."""

    def call(k: int) -> Called:
        mine = product(*sizes, seed + k, dtype).mine(way, group.size(), group.rank())
        given = {"x": mine.x, "weight": mine.weight, "dy": mine.dy}
        with torch.no_grad():  # by hand: autograd has nothing to offer here
            return called(lambda: function(mine.x, mine.weight, mine.dy, group, way), given)

    calls = [call(0)]
    while len(calls) < len(CALLS) and not spoilt(group):
        calls.append(call(len(calls)))
    return alive(calls)


def steps(
    function: Callable,
    group: Group,
    sizes: Sequence[int],
    seed: int,
    lr: float,
    dtype: str,
    count: int,
) -> list[dict]:
    """Call `function(x, weight, bias, target, lr, group)` for `count` steps of each of two layers.

    It returns (Y, weight, bias), and that comes back to it in the next step of that layer. The
    layers take their steps in turns; the reports are in the order of the calls.
    """
    n, rank = group.size(), group.rank()
    seeds = [seed + STEPS * k for k in range(len(CALLS))]
    layers = [product(*sizes, one, dtype).mine(ROWS, n, rank) for one in seeds]
    held = [(layer.weight, layer.bias) for layer in layers]
    calls = []
    for step, k in itertools.product(range(count), range(len(CALLS))):
        data = product(*sizes, seeds[k] + step, dtype).mine(ROWS, n, rank)
        given, (weight, bias) = {"x": data.x, "target": data.dy}, held[k]
        wanted = [data.dy.shape, weight.shape, bias.shape]
        with torch.no_grad():
            call = called(partial(function, data.x, weight, bias, data.dy, lr, group), given)
        calls.append(call)
        # What does not fit is refused later; until then this rank goes on, for the others' sake.
        if call.report["shapes"] == [list(shape) for shape in wanted]:
            weight, bias = (part.clone() for part in call.report["entries"][1:])
        held[k] = (weight, bias)
        if spoilt(group):
            break
    return alive(calls)


class Called(NamedTuple):
    """A call's report, and the tensors that came back, which a later call may write into."""

    report: dict
    tensors: list[Tensor]


def alive(calls: Sequence[Called]) -> list[dict]:
    """The reports of all calls, each with the entries that a later call has overwritten."""
    for report, tensors in calls:
        pairs = zip(tensors, report["entries"], strict=True)
        report["overwritten"] = [
            k
            for k, (now, then) in enumerate(pairs)
            if then is not None and not torch.equal(now.detach().nan_to_num(), then.nan_to_num())
        ]
    return [report for report, _ in calls]


def called(action: Callable[[], object], given: Mapping[str, Tensor]) -> Called:
    """What came back from an answer that returns a tuple of tensors, and what it did on the way."""
    before = {name: (tensor.clone(), tensor.requires_grad) for name, tensor in given.items()}
    out, facts = bench.watched(action)
    entries = list(out) if isinstance(out, (list, tuple)) else []
    tensors = [one for one in entries if isinstance(one, Tensor) and _plain(one)]
    small = [one.detach() if one.numel() < _MOST else None for one in tensors]
    report = {
        **facts,
        "kind": type(out).__name__,
        "kinds": [_kind(one) for one in entries],
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
    return Called(report, tensors)


def _plain(tensor: Tensor) -> bool:
    """Whether its elements can be read as they lie in memory."""
    return tensor.layout == torch.strided and not tensor.is_meta


def _kind(entry: object) -> str:
    name = type(entry).__name__
    if isinstance(entry, Tensor) and not _plain(entry):
        return f"{name} without elements" if entry.is_meta else f"{name} that is sparse"
    return name
