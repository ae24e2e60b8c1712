"""A training of m ranks that was saved, and the shards in which n ranks go on: drawn, and computed.

Parameters lie end to end in two groups, those that decay and those that do not; each group is
filled up by itself to a multiple of the ranks and cut. A wrong idea is another cut. Lesson 14.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

MASTER, FIRST, SECOND = KINDS = ("master", "exp_avg", "exp_avg_sq")
STEP, NEXT = "step", "next"
KEYS = (*KINDS, STEP, NEXT)
BATCH = 12  # samples of a step, over all ranks
PADDING = -777.0  # what stands there is no parameter

Layout = list[list[tuple[str, int]]]  # group by group, (name, elements) in their order


class Sizes(NamedTuple):
    """Of a model with two products: x (i) → h → o."""

    i: int
    h: int
    o: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        i, h, o = self
        return {"up.weight": (h, i), "down.weight": (o, h), "up.bias": (h,), "down.bias": (o,)}

    def layout(self, turned: bool) -> Layout:
        """The names in their groups; `turned`: the last of a group first, as another run may lay
        them."""
        groups = (["up.weight", "down.weight"], ["up.bias", "down.bias"])
        order = [names[::-1] if turned else names for names in groups]
        return [[(name, math.prod(self.shapes[name])) for name in names] for names in order]


class Run(NamedTuple):
    """What was saved: whole tensors by kind and name, and the counts."""

    sizes: Sizes
    m: int
    step: int
    states: dict[str, dict[str, Tensor]]

    def times(self, factor: float) -> Run:
        """Another run with the same sizes and counts, and each state so many times as large."""
        kinds = self.states.items()
        scaled = {kind: {name: factor * x for name, x in own.items()} for kind, own in kinds}
        return self._replace(states=scaled)

    @property
    def samples(self) -> int:
        """How many each of the m ranks has read."""
        return self.step * BATCH // self.m


def drawn(m: int, n: int, seed: int, few: bool = False) -> Run:
    """A run whose groups divide neither by m nor by n, nor by m as they would be rounded down; or
    one with so `few` biases that the last of three ranks holds none."""
    r = Random(seed)
    sizes = Sizes(r.choice((3, 5, 6)), 2, 2)
    while not few:
        sizes = Sizes(r.randint(3, 7), r.randint(5, 15), r.randint(1, 7))
        totals = [sum(size for _, size in group) for group in sizes.layout(False)]
        uneven = all(total % k for total in totals for k in (m, n)) and totals[1] > m * (m - 1)
        if uneven and _most_files(sizes, m, n) >= min(m, 3):
            break
    made = torch.Generator().manual_seed(seed)
    states: dict[str, dict[str, Tensor]] = {}
    for kind in KINDS:
        draw = {
            name: torch.randn(math.prod(shape), generator=made, dtype=torch.float64)
            for name, shape in sizes.shapes.items()
        }
        states[kind] = {name: x * x if kind == SECOND else x for name, x in draw.items()}
    return Run(sizes, m, r.randint(3, 9), states)


def _most_files(sizes: Sizes, m: int, n: int) -> int:
    """Old files that the elements of one parameter come from which one new rank holds."""
    most = 0
    for old, new in zip(sizes.layout(False), sizes.layout(True), strict=True):
        flat = [[(name, k) for name, size in group for k in range(size)] for group in (old, new)]
        file_of = {key: at // shard(len(flat[0]), m) for at, key in enumerate(flat[0])}
        runs: dict[tuple[int, str], set[int]] = {}
        for at, key in enumerate(flat[1]):
            runs.setdefault((at // shard(len(flat[1]), n), key[0]), set()).add(file_of[key])
        most = max(most, *map(len, runs.values()))
    return most


def shard(total: int, ranks: int) -> int:
    return -(-total // ranks)


def flat(state: dict[str, Tensor], group: Sequence[tuple[str, int]]) -> Tensor:
    return torch.cat([state[name] for name, _ in group])


def cut(state: dict[str, Tensor], layout: Layout, ranks: int, fill: float) -> list[Tensor]:
    """Every rank's piece of each group, one after another."""
    pieces: list[list[Tensor]] = [[] for _ in range(ranks)]
    for group in layout:
        whole = flat(state, group)
        size = shard(len(whole), ranks)
        padded = torch.cat((whole, whole.new_full((size * ranks - len(whole),), fill)))
        for own, piece in zip(pieces, padded.split(size), strict=True):
            own.append(piece)
    return [torch.cat(own) for own in pieces]


def files(run: Run) -> dict[str, list[Tensor]]:
    """What each old rank has written, by kind."""
    layout = run.sizes.layout(False)
    return {kind: cut(run.states[kind], layout, run.m, PADDING) for kind in KINDS}


def wanted(run: Run, n: int, rank: int) -> dict[str, Tensor | int]:
    """What a new rank has to have."""
    layout = run.sizes.layout(True)
    shards = {kind: cut(run.states[kind], layout, n, 0.0)[rank] for kind in KINDS}
    return {**shards, STEP: run.step, NEXT: run.samples * run.m + rank * BATCH // n}


def real(run: Run, n: int, rank: int) -> list[int]:
    """How many elements of each group a new rank holds that are parameters."""
    held = []
    for group in run.sizes.layout(True):
        total = sum(size for _, size in group)
        size = shard(total, n)
        held.append(max(0, min(total, (rank + 1) * size) - rank * size))
    return held


# ---- wrong ideas of where things are
def in_the_old_order(run: Run, n: int, rank: int, kind: str) -> Tensor:
    return cut(run.states[kind], run.sizes.layout(False), n, 0.0)[rank]


def misread(
    run: Run, n: int, rank: int, kind: str, *, floor: bool = False, base: bool = False
) -> Tensor:
    """Read from the old files with old pieces rounded down, or with the group before without its
    padding."""
    whole = files(run)[kind]
    groups = run.sizes.layout(False)
    totals = [sum(size for _, size in group) for group in groups]
    sizes = [total // run.m if floor else shard(total, run.m) for total in totals]
    begins = [0, totals[0] // run.m if base or floor else sizes[0]]
    state: dict[str, Tensor] = {}
    for group, size, begin in zip(groups, sizes, begins, strict=True):
        at = 0
        for name, count in group:
            places = [divmod(at + k, size) for k in range(count)]
            got = [
                whole[min(q, run.m - 1)][min(begin + rest, len(whole[0]) - 1)] for q, rest in places
            ]
            state[name], at = torch.stack(got), at + count
    return cut(state, run.sizes.layout(True), n, 0.0)[rank]


# ---- how the training goes on
def loss_of(sizes: Sizes, state: dict[str, Tensor], samples: Tensor) -> Tensor:
    """The mean over some samples, (b, i + o) each."""
    up, down = (
        state[f"{name}.weight"].view(sizes.shapes[f"{name}.weight"]) for name in ("up", "down")
    )
    x, y = samples[:, : sizes.i], samples[:, sizes.i :]
    out = torch.tanh(x @ up.T + state["up.bias"]) @ down.T + state["down.bias"]
    return ((out - y) ** 2).mean()


def corpus(sizes: Sizes, count: int, seed: int) -> Tensor:
    made = torch.Generator().manual_seed(seed + 1)
    return torch.randn((count, sizes.i + sizes.o), generator=made, dtype=torch.float64)


RATE, BETAS, EPS, DECAY = 0.05, (0.9, 0.99), 1e-8, 0.1


def adam(
    state: dict[str, Tensor], grad: Tensor, step: int, decay: Tensor | float
) -> dict[str, Tensor]:
    """One step of AdamW, `step` the new count; elementwise, so a shard is as good as a whole."""
    one, two = BETAS
    first = one * state[FIRST] + (1 - one) * grad
    second = two * state[SECOND] + (1 - two) * grad * grad
    moved = (first / (1 - one**step)) / ((second / (1 - two**step)).sqrt() + EPS)
    master = state[MASTER] * (1 - RATE * decay) - RATE * moved
    return {MASTER: master, FIRST: first, SECOND: second}


def without_a_save(run: Run, seed: int, count: int) -> list[float]:
    """The next losses of the run, had it gone on in one process."""
    states = {name: {k: run.states[k][name] for k in KINDS} for name in run.sizes.shapes}
    samples, losses = corpus(run.sizes, (run.step + count) * BATCH, seed), []
    for k in range(run.step, run.step + count):
        leaves = {name: s[MASTER].clone().requires_grad_() for name, s in states.items()}
        loss = loss_of(run.sizes, leaves, samples[k * BATCH : (k + 1) * BATCH])
        grads = torch.autograd.grad(loss, list(leaves.values()))
        for (name, state), grad in zip(states.items(), grads, strict=True):
            decay = DECAY if name.endswith("weight") else 0.0
            states[name] = adam(state, grad, k + 1, decay)
        losses.append(loss.item())
    return losses
