"""Trials of lesson 02's functions on the judge's ranks, with their common requirements.

A case is a full product of random numbers, identical on every rank because of one seed; an answer
returns a tuple of tensors, whose shapes reveal swapped dims, unsharded tensors or a wrong order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup as Group

from course_classroom.judge import bench, looking
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.judge import Judge, refuse_none
from course_classroom.judge.words import Page, Words
from course_lessons.lesson_00.trial import CALLS, alive, spoilt, told
from course_lib.layout import cut, span
from course_lib.ledger import forms

SAYS = Page(__file__, "trial")
COLUMNS, ROWS = "columns", "rows"
STEPS = 3
Sizes = Sequence[int]  # b, h and f
_STOPPED = ("raised", "deadlock", "not called by all")
_OF_AUTOGRAD = ("does not require grad", "has no backward")


class Product(NamedTuple):
    """The full product Y = X W + bias with a gradient dY."""

    x: Tensor  # (b, h)
    weight: Tensor  # (h, f)
    bias: Tensor  # (f,)
    dy: Tensor  # (b, f)

    def mine(self, way: str, n: int, rank: int) -> Product:
        """Return one rank's shards of this product."""
        h, f = self.weight.shape
        own = slice(*span(f if way == COLUMNS else h, n, rank))
        parts = (self.x[:, own], self.weight[own], self.bias, self.dy)
        if way == COLUMNS:
            parts = (self.x, self.weight[:, own], self.bias[own], self.dy[:, own])
        return Product(*(part.clone() for part in parts))

    def double(self) -> Product:
        """Return the same numbers in float64."""
        return Product(*(part.double() for part in self))


def product(b: int, h: int, f: int, seed: int, dtype: str = "float64") -> Product:
    """Draw random numbers; in float32 they are nonzero integers, so that results are exact."""
    made = torch.Generator().manual_seed(seed)
    shapes = ((b, h), (h, f), (f,), (b, f))
    numbers = [torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes]
    if dtype == "float32":
        return Product(*((part.abs().ceil() * part.sign()).float() for part in numbers))
    return Product(*numbers)


def gradients(
    function: Callable, group: Group, way: str, sizes: Sizes, seed: int, dtype: str
) -> list[dict]:
    """Call `function(x, weight, dy, group, way)` twice, where each call returns (dX, dW, db)."""

    def call(k: int) -> tuple[dict, object]:
        mine = product(*sizes, seed + k, dtype).mine(way, group.size(), group.rank())
        given = {"x": mine.x, "weight": mine.weight, "dy": mine.dy}
        with torch.inference_mode():  # by hand: autograd is not needed here
            return called(lambda: function(*given.values(), group, way), given)

    return twice(call, group)


def twice(call: Callable[[int], tuple[dict, object]], group: Group) -> list[dict]:
    """Return the reports of two calls, or of only the first if that destroyed its group."""
    calls = [call(0)]
    while len(calls) < len(CALLS) and not spoilt(group):
        calls.append(call(len(calls)))
    return alive(*zip(*calls, strict=True))


def steps(
    function: Callable, group: Group, sizes: Sizes, seed: int, lr: float, dtype: str, count: int
) -> list[dict]:
    """Call `function(x, weight, bias, target, lr, group)` for `count` steps of each of two layers.

    It returns Y and the new weight and bias, which are passed to that layer's next step. The layers
    take turns, and the reports are in the order of the calls.
    """
    n, rank = group.size(), group.rank()
    seeds = [seed + STEPS * k for k in range(len(CALLS))]
    held = [product(*sizes, one, dtype).mine(ROWS, n, rank)[1:3] for one in seeds]
    calls = []
    for step, k in itertools.product(range(count), range(len(CALLS))):
        data, (weight, bias) = product(*sizes, seeds[k] + step, dtype).mine(ROWS, n, rank), held[k]
        wanted = [list(part.shape) for part in (data.dy, weight, bias)]
        with torch.no_grad():
            step_of = partial(function, data.x, weight, bias, data.dy, lr / 2**step, group)
            calls.append(called(step_of, {"x": data.x, "target": data.dy}))
        # Misfits are refused later; until then this rank continues so that the others do not wait.
        if calls[-1][0]["shapes"] == wanted:
            weight, bias = (part.clone() for part in calls[-1][0]["entries"][1:])
        held[k] = (weight, bias)
        if spoilt(group):
            break
    return alive(*zip(*calls, strict=True))


def called(action: Callable[[], object], given: Mapping[str, Tensor]) -> tuple[dict, object]:
    """Return a report of an answer's tuple of tensors, and the tuple itself."""
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


class Owed(NamedTuple):
    """One entry of the tuple: its name, this rank's shard, and the full tensor."""

    name: str
    part: Tensor
    whole: Tensor


class Call(Protocol):
    """One call on a group: the results of each rank, and the right results."""

    reports: list[dict]
    owed: list[list[Owed]]
    when: str
    dtype: str


def seen(call: Call, part: int) -> list[Tensor]:
    return [report["entries"][part] for report in call.reports]


def wrong(call: Call, part: int, alike: Callable = looking.near) -> list[int]:
    """Return the ranks on which an entry of the tuple is wrong."""
    pairs = zip(seen(call, part), call.owed, strict=True)
    return [rank for rank, (one, owed) in enumerate(pairs) if not alike(one, owed[part].part)]


def tried(answer: Answer, judge: Judge, where: tuple, call: Callable, *trial: object) -> list:
    """Run a trial and return its calls, each created by `call(number, the reports of all ranks)`.

    `where` has the members, a description, and the cut length. If an answer fails only at an
    indivisible length, the Finding states that.
    """
    members, when, length = where
    pieces = cut(length, len(members))
    empty = [rank for rank, piece in enumerate(pieces) if not piece]
    with (
        told(SAYS, "autograd", lambda finding: any(one in finding.text for one in _OF_AUTOGRAD)),
        told(SAYS, "uneven sizes", lambda f: len(set(pieces)) > 1 and f.name in _STOPPED),
    ):
        reports = judge.trial(answer, *trial, members=members, when=when, empty=empty)
    calls = [call(k, list(of_ranks)) for k, of_ranks in enumerate(zip(*reports, strict=True))]
    for one in calls:
        look_at_results(one)
    return calls


def look_at_results(call: Call) -> None:
    """Refuse a changed input, or a result that is not a tuple of this rank's tensors.

    Later comparisons use float64, regardless of the dtype.
    """
    reports, when, count = call.reports, call.when, len(call.owed[0])
    asked = f"({', '.join(one.name for one in call.owed[0])})"
    refuse_none(reports, when, asked)
    lost = {"not these tensors": lambda r: not len(r["kinds"]) == len(r["entries"]) == count}
    SAYS.refuse_each(reports, lost, when=when, count=count, asked=asked)
    for rank, (report, owed) in enumerate(zip(reports, call.owed, strict=True)):
        shapes, right = report["shapes"], [list(one.part.shape) for one in owed]
        turned = shapes != right and sorted(shapes) == sorted(right)
        SAYS.refuse({"wrong order": turned}, rank=rank, when=when, asked=asked)
        for one, shape, wanted in zip(owed, shapes, right, strict=True):
            whole = list(one.whole.shape)
            named = {
                "transposed": shape == wanted[::-1] or shape == whole[::-1] != whole,
                "full tensor on every rank": shape == whole,
                "wrong shape": True,
            }
            if shape != wanted:
                about = {"name": one.name, "shape": shape, "wanted": wanted}
                SAYS.refuse(named, rank=rank, when=when, **about)
    looks = {
        "wrong dtype": lambda r: set(r["dtypes"]) != {call.dtype},
        "input changed": lambda r: r["changed"],
    }
    SAYS.refuse_each(reports, looks, when=when, asked=asked, dtype=call.dtype)
    for report in reports:
        report["entries"] = [entry.double() for entry in report["entries"]]


def refuse_first(
    got: Tensor, says: Words, ideas: Iterable[tuple[str, Tensor]], head: str, **about: object
) -> None:
    """Raise the Finding of the first idea that gives a rank's result; `says` has its entry."""
    for entry, value in ideas:
        (idea,) = looking.ideas(says, {entry: [value]}, **about)
        if looking.explains(idea, [got]):
            raise Finding(idea.name, f"{head} {idea.text}")


def fair(call: Call, shape: Sequence[int]) -> float:
    """Return the bytes allowed for an all-reduce, in one call or two halves cut along any dim."""
    n, numbers, item = len(call.reports), math.prod(shape), getattr(torch, call.dtype).itemsize
    halves = [numbers + (n - 2) * -(-length // n) * numbers / length for length in shape]
    return item * max(forms.all_reduce(n, numbers), *halves)
