"""A training of m ranks that was saved, and the shards in which n ranks go on: drawn, and computed.

Parameters lie end to end in two groups, those that decay and those that do not; each group is
filled up by itself to a multiple of the ranks and cut. A wrong idea is another cut. Lesson 14.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

MASTER, FIRST, SECOND = KINDS = ("master", "exp_avg", "exp_avg_sq")
BATCH, STEPS = 12, 3  # samples of a step, over all ranks; steps that are made after the load
PADDING = -777.0  # what stands there is no parameter
RATE, BETAS, EPS, DECAY = 0.05, (0.9, 0.99), 1e-8, 0.1

Layout = list[list[tuple[str, int]]]  # group by group, (name, elements) in their order
Places = Mapping[tuple[str, int], tuple[int, int]]  # (name, element) → rank, index in its shard
State = Mapping[str, Tensor]  # whole tensors, flat, by name


class Run(NamedTuple):
    """What m ranks have saved."""

    m: int
    step: int
    old: Layout
    states: Mapping[str, State]  # by kind

    @property
    def new(self) -> Layout:
        """The last of a group first, as another run may lay them."""
        return [group[::-1] for group in self.old]


def drawn(m: int, n: int, seed: int, few: bool = False) -> Run:
    """A run whose groups divide neither by m nor by n, nor by m as they would be rounded down; or
    one with so `few` biases that the last of three ranks holds none."""
    r, made = Random(seed), torch.Generator().manual_seed(seed)
    old = _layout(r.choice((3, 5, 6)), 2, 2)
    while not few:
        old = _layout(r.randint(3, 7), r.randint(5, 15), r.randint(1, 7))
        totals = [sum(size for _, size in group) for group in old]
        uneven = all(total % k for total in totals for k in (m, n)) and totals[1] > m * (m - 1)
        if uneven and _most_files(Run(m, 0, old, {}), n) >= min(m, 3):
            break
    states: dict[str, dict[str, Tensor]] = {kind: {} for kind in KINDS}
    for kind, state in states.items():
        for name, size in (parameter for group in old for parameter in group):
            x = torch.randn(size, generator=made, dtype=torch.float64)
            state[name] = x * x if kind == SECOND else x
    return Run(m, r.randint(3, 9), old, states)


def _layout(i: int, h: int, o: int) -> Layout:
    """Of two products with biases, i → h → o."""
    return [[("up.weight", h * i), ("down.weight", o * h)], [("up.bias", h), ("down.bias", o)]]


def _most_files(run: Run, n: int) -> int:
    """Old files that the elements of one parameter come from which one new rank holds."""
    old, files = places(run.old, run.m), {}
    for (name, k), (rank, _) in places(run.new, n).items():
        files.setdefault((name, rank), set()).add(old[name, k][0])
    return max(map(len, files.values()))


def places(layout: Layout, ranks: int, floor: bool = False, base: bool = False) -> Places:
    """Where each element lies; or where it would with pieces rounded down to the `floor`, or with a
    `base` of the second group that forgets the padding of the first."""
    found, begin = {}, 0
    for group in layout:
        keys = [(name, k) for name, size in group for k in range(size)]
        down = len(keys) // ranks
        piece = down if floor else math.ceil(len(keys) / ranks)
        found |= {key: (at // piece, begin + at % piece) for at, key in enumerate(keys)}
        begin += down if base else piece
    return found


def shards(state: State, layout: Layout, ranks: int, fill: float = 0.0) -> Tensor:
    """(ranks, length): every rank's piece of each group, one after another."""
    length = sum(math.ceil(sum(size for _, size in group) / ranks) for group in layout)
    made = torch.full((ranks, length), fill, dtype=torch.float64)
    for (name, k), place in places(layout, ranks).items():
        made[place] = state[name][k]
    return made


def whole(pieces: Sequence[Tensor], there: Places) -> State:
    """The flat tensors out of shards; what would lie beyond the last is read from its end."""
    last, end, state = len(pieces) - 1, len(pieces[0]) - 1, {}
    for (name, _), (rank, at) in there.items():
        state.setdefault(name, []).append(pieces[min(rank, last)][min(at, end)])
    return {name: torch.stack(elements) for name, elements in state.items()}


def files(run: Run) -> dict[str, Tensor]:
    """What the old ranks have written, by kind."""
    return {kind: shards(run.states[kind], run.old, run.m, PADDING) for kind in KINDS}


def misread(run: Run, n: int, kind: str, **how: bool) -> Tensor:
    """The new shards, where the old files were taken to lie as `places` says."""
    read = whole(files(run)[kind], places(run.old, run.m, **how))
    return shards(read, run.new, n)


def losses(
    run: Run, states: Mapping[str, State], step: int, starts: Sequence[int], seed: int
) -> list[float]:
    """The next losses of a linear regression on all parameters, from these states under AdamW; each
    rank's samples begin at its start."""
    names = [name for group in run.old for name, _ in group]
    master, first, second = (torch.cat([states[kind][x] for x in names]) for kind in KINDS)
    weights = sum(size for _, size in run.old[0])  # they come first, and decay
    made, shape = torch.Generator().manual_seed(seed + 1), (BATCH * (run.step + STEPS), len(master))
    samples = torch.randn(shape, generator=made, dtype=torch.float64)
    (one, two), found = BETAS, []
    for k in range(STEPS):
        begins = [start + k * BATCH for start in starts]
        rows = torch.cat([samples[at : at + BATCH // len(starts)] for at in begins])
        errors = rows @ master
        found.append(errors.square().mean().item())
        grad, t = 2 * rows.T @ errors / len(rows), step + k + 1
        first, second = one * first + (1 - one) * grad, two * second + (1 - two) * grad * grad
        master[:weights] *= 1 - RATE * DECAY
        master -= RATE * (first / (1 - one**t)) / ((second / (1 - two**t)).sqrt() + EPS)
    return found
