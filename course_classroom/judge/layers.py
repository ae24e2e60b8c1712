"""Layers over ranks as exercises declare them: an interface in the notation, and a reference.

The declaration determines each rank's inputs, its expected output and its part of each gradient.
This module includes the trial on the judge's ranks. From lesson 04 on.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_classroom.judge import bench
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group
from course_lib.layout import cut
from course_lib.layout.notation import Layout, Statement
from course_lib.memory.lifetimes import StorageWatch

STEPS = 2
PATIENCE = 20  # times 10 ms, because a backend may hold its copy of a message a moment longer
Sizes = Mapping[str, int]


class Use(NamedTuple):
    """One of several layers that are alive at once, each with different values."""

    sizes: Sizes
    dtype: str = "float64"
    alone: bool = False  # in a group with only this rank


class Numbers(NamedTuple):
    """Full tensors by name: the parameters, and each step's other inputs and output gradient."""

    parameters: dict[str, Tensor]
    fresh: list[dict[str, Tensor]]
    dys: list[Tensor]

    def at(self, step: int) -> dict[str, Tensor]:
        return {**self.parameters, **self.fresh[step]}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer whose `answer(*inputs, *also, group)` is `dense(*inputs)`, sharded as in `text`."""

    text: str  # "x[b, h] weight[f@tp, h] -> y[b, f@tp]": x is new at each step, others are trained
    dense: Callable[..., Tensor]
    fixed: tuple[str, ...] = ()  # inputs that are also new at each step but have no gradient
    grows: Sizes = field(default_factory=dict)  # growth of a dim from step to step
    # Lengths of a dim by rank, from its size and n, if they differ from `cut`.
    shares: Mapping[str, Callable[[int, int], list[int]]] = field(default_factory=dict)
    also: Callable[[Sizes, int], tuple] = lambda sizes, n: ()  # further arguments of the answer
    drawn: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor
    rate: float = 0.1
    counts_wide: bool = False  # whether tensors as large as the full x are counted

    @cached_property
    def inputs(self) -> tuple[Layout, ...]:
        return Statement.parse(self.text).inputs

    @cached_property
    def out(self) -> Layout:
        return Statement.parse(self.text).outputs[0]

    @cached_property
    def names(self) -> list[str]:
        return [layout.name for layout in self.inputs]

    @cached_property
    def trained(self) -> list[str]:
        """Return the inputs with a gradient, x first."""
        return [name for name in self.names if name not in self.fixed]

    def at(self, sizes: Sizes, step: int) -> dict[str, int]:
        """Return the sizes of all dims in a step."""
        return {dim: size + step * self.grows.get(dim, 0) for dim, size in sizes.items()}

    def numbers(self, sizes: Sizes, seed: int) -> Numbers:
        """Draw the values, which are identical on every rank and in the judge's process."""
        made = torch.Generator().manual_seed(seed)

        def some(layout: Layout, step: int) -> Tensor:
            now = self.at(sizes, step)
            shape = [now[dim.name] for dim in layout.dims]
            drawn = torch.randn(shape, generator=made, dtype=torch.float64)
            return self.drawn(layout.name, drawn)

        new = (self.names[0], *self.fixed)
        fresh = [
            {one.name: some(one, step) for one in self.inputs if one.name in new}
            for step in range(STEPS)
        ]
        parameters = {one.name: some(one, 0) for one in self.inputs if one.name not in new}
        return Numbers(parameters, fresh, [some(self.out, step) for step in range(STEPS)])

    def lengths(self, dim: str, size: int, n: int) -> list[int]:
        """Return the length of a sharded dim on each rank."""
        return self.shares.get(dim, cut)(size, n)

    def part(self, name: str, whole: Tensor, n: int, rank: int) -> Tensor:
        """Return a rank's shard of a tensor or of its gradient, which has the same layout."""
        (layout,) = (one for one in (*self.inputs, self.out) if one.name == name)
        for place, dim in enumerate(layout.dims):
            if dim.axes:
                whole = whole.split(self.lengths(dim.name, whole.shape[place], n), place)[rank]
        return whole

    def leaves(
        self, whole: Mapping[str, Tensor], n: int, rank: int, dtype: torch.dtype = torch.float64
    ) -> dict[str, Tensor]:
        """Return a rank's shards of the inputs by name."""
        parts = {name: self.part(name, tensor, n, rank) for name, tensor in whole.items()}
        return {
            name: part.to(dtype, copy=True).contiguous().requires_grad_(name not in self.fixed)
            for name, part in parts.items()
        }

    def empty(self, sizes: Sizes, n: int) -> list[int]:
        """Return the ranks on which some sharded dim is empty."""
        dims = {dim.name for layout in self.inputs for dim in layout.dims if dim.axes}
        shares = [self.lengths(dim, sizes[dim], n) for dim in dims]
        return [rank for rank in range(n) if any(not share[rank] for share in shares)]


class Seen:
    """Steps of the answer on a group, with the steps of one process for comparison."""

    def __init__(self, layer: Layer, sizes: Sizes, seed: int, reports: list[dict], when: str):
        self.layer, self.sizes, self.reports, self.when = layer, sizes, reports, when
        self.n = len(reports)
        self.ranks = range(self.n)
        self.numbers = layer.numbers(sizes, seed)
        self.inputs = [self.numbers.at(0)[name] for name in layer.names]
        self.dy = self.numbers.dys[0]

    def part(self, name: str, whole: Tensor, rank: int) -> Tensor:
        return self.layer.part(name, whole, self.n, rank)

    def cut(self, name: str, whole: Tensor) -> list[Tensor]:
        """Return the ranks' shards of a full tensor with the layout of `name`."""
        return [self.part(name, whole, rank) for rank in self.ranks]

    def shards(self, rank: int) -> list[Tensor]:
        """Return a rank's inputs in the first step."""
        return [self.part(*one, rank) for one in zip(self.layer.names, self.inputs, strict=True)]

    @cached_property
    def steps(self) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """Return the output and the gradients of one process for each step."""
        weights, trained, found = self.numbers.parameters, self.layer.trained, []
        for fresh, dy in zip(self.numbers.fresh, self.numbers.dys, strict=True):
            given = {name: t.detach().clone() for name, t in {**weights, **fresh}.items()}
            leaves = [given[name].requires_grad_() for name in trained]
            y = self.layer.dense(*(given[name] for name in self.layer.names))
            grads = dict(zip(trained, torch.autograd.grad(y, leaves, dy), strict=True))
            found.append((y.detach(), grads))
            weights = {name: w - self.layer.rate * grads[name] for name, w in weights.items()}
        return found

    def outputs(self, step: int = 0) -> list[Tensor]:
        """Return the expected output of each rank."""
        return self.cut(self.layer.out.name, self.steps[step][0])

    def gradients(self, name: str, step: int = 0) -> list[Tensor]:
        """Return the expected gradient of each rank, in the layout of its tensor."""
        return self.cut(name, self.steps[step][1][name])

    def seen(self, name: str, step: int = 0) -> list[Tensor | None]:
        """Return the gradient of each rank; None counts as zeros if the right gradient is zero."""
        right = self.gradients(name, step)
        steps = [report["steps"][step] if "steps" in report else report for report in self.reports]
        found = [(one["grads"] or {}).get(name) for one in steps]
        pairs = zip(found, right, strict=True)
        return [r if one is None and not r.any() else one for one, r in pairs]

    def about(self) -> dict:
        """Return the values for placeholders in texts."""
        return {"when": self.when, "n": self.n, **self.sizes}


def run(function: Callable, group: Group, module: str, sizes: Sizes, seed: int) -> dict:
    """Train the answer for some steps with this rank's shards; return each step's results."""
    layer, n, rank = _layer(module), group.size(), group.rank()
    made = layer.numbers(sizes, seed)
    parameters = layer.leaves(made.parameters, n, rank)
    steps: list[dict] = []
    for step, (fresh, dy) in enumerate(zip(made.fresh, made.dys, strict=True)):
        given = {**parameters, **layer.leaves(fresh, n, rank)}
        leaves = {name: given[name] for name in layer.names}
        wide = fresh[layer.names[0]].nbytes if layer.counts_wide else None
        dy = layer.part(layer.out.name, dy, n, rank)
        also = layer.also(layer.at(sizes, step), n)
        steps.append(_step(function, group, leaves, also, dy, wide))
        if steps[-1]["grads"] is None:
            break
        with torch.no_grad():
            for p in parameters.values():
                p -= 0 if p.grad is None else layer.rate * p.grad
                p.grad = None
    return {**steps[0], "steps": steps}


def _step(
    function: Callable,
    group: Group,
    leaves: Mapping[str, Tensor],
    also: tuple,
    dy: Tensor,
    wide: int | None,
) -> dict:
    """Run one forward pass and, if the output requires a gradient, one backward pass."""
    before, given = [leaf.detach().clone() for leaf in leaves.values()], deepcopy(also)
    with contextlib.nullcontext() if wide is None else StorageWatch() as memory:
        out, forward = bench.watched(lambda: function(*leaves.values(), *given, group))
    alive = 0 if wide is None else _alive(memory, wide)
    report = {**_back(out, leaves, dy, group), "forward": forward, "wide": alive}
    now = [leaf.detach() for leaf in leaves.values()]
    report["changed"] = given != also or not all(map(torch.equal, before, now))
    return report


def _back(out: object, leaves: Mapping[str, Tensor], dy: Tensor, group: Group) -> dict:
    """Describe the output and, if it requires a gradient on all ranks, the input gradients."""
    report = {**bench.described(out), "out": None, "grads": None, "backward": None}
    alike = bench.plain(out) and out.dtype == dy.dtype and out.numel() == dy.numel()
    fits = alike and (out.shape == dy.shape or not dy.shape)  # a single number may have any shape
    if fits:
        report["out"] = out.detach().double().clone().reshape(dy.shape)
    if agreed(fits and out.requires_grad, group):
        _, report["backward"] = bench.watched(lambda: out.backward(dy.reshape(out.shape)))
        had = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        report["grads"] = {name: grad.double().clone() for name, grad in had.items()}
    return report


def at_once(function: Callable, group: Group, module: str, uses: Sequence, seed: int) -> list[dict]:
    """Run layers that are alive together: all forward passes first, then all backward passes."""
    layer, own, made = _layer(module), alone_in_a_group(), []
    for number, (sizes, dtype, alone) in enumerate(uses):
        kind, where = getattr(torch, dtype), own if alone else group
        n, rank = where.size(), where.rank()
        whole = layer.numbers(sizes, seed + number)
        given = layer.leaves(whole.at(0), n, rank, kind)
        leaves = {name: given[name] for name in layer.names}
        also = layer.also(sizes, n)
        out, _ = bench.watched(lambda x=leaves, a=also, g=where: function(*x.values(), *a, g))
        made.append((out, leaves, layer.part(layer.out.name, whole.dys[0], n, rank).to(kind)))
    found = [_back(*one, group) for one in made]
    bench.end(own)
    return found


def agreed(fine: bool, group: Group) -> bool:
    """Return True if all ranks can continue, or False on all ranks, so that no rank waits."""
    return bool(all_gather(torch.tensor([int(fine)]), group).all())


def alone_in_a_group() -> dist.ProcessGroup:
    """Create a group with only this rank; every rank of the world has to call this."""
    return [dist.new_group([r]) for r in range(dist.get_world_size())][dist.get_rank()]


def _layer(module: str) -> Layer:
    return importlib.import_module(module).LAYER


def _alive(memory: StorageWatch, least: int) -> int:
    """Return the number of live storages of at least `least` bytes."""
    for _ in range(PATIENCE):
        found = sum(one.nbytes() >= least for one in memory.made_and_alive())
        if found <= 1:
            break
        time.sleep(0.01)
    return found
