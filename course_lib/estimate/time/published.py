"""Published training runs, and the four figures of a GPU that are fitted to half of them.

MPT's tables (llm-foundry, scripts/train/benchmarking: FSDP, fused attention) are in published.csv;
docs/cost_model.md says how far off the other half is. Lesson 15.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from course_lib.estimate.model import Model
from course_lib.estimate.setting import Needs, Setting, moves
from course_lib.estimate.time.costs import Costs, costs_of_model
from course_lib.estimate.time.machine import Constants, Machine, Place, Rate
from course_lib.estimate.time.step import step_seconds
from course_lib.gpt import Config

FILE = Path(__file__).with_name("published.csv")
PER_NODE = 8  # GPUs, in the runs that are fitted


class Fitted(NamedTuple):
    """Of a GPU's peak what wide products and a fused attention reach, the hidden size at which
    products reach half of theirs, and what part of the memory's bandwidth the rest gets. Of `runs`
    nine in ten are predicted to within the part `within`."""

    products: float
    knee: float
    attention: float
    stream: float
    runs: int = 0
    within: float = 0.0

    def rate(self, ranks: int, peak: float, moved: float) -> Rate:
        how = {"attention": peak * self.attention, "knee": self.knee, "stream": self.stream}
        return Rate(ranks, peak * self.products, moved, **how)


H100 = Fitted(0.702, 314.0, 0.347, 0.493, 52, 0.10)
A100 = Fitted(0.904, 479.0, 0.592, 0.695, 51, 0.08)


@dataclass(frozen=True)
class Run:
    """One row: a decoder, of GPT-2's shapes without biases where it has no `inner`, otherwise of
    Llama's; and the tokens that each GPU trained in a second."""

    source: str
    gpu: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    length: int
    gpus: int
    per_node: int
    tp: int
    stage: int
    rows: int
    accumulate: int
    recompute: bool
    tokens_per_second: float
    fitted: bool

    @property
    def config(self) -> Config:
        names = ("hidden", "layers", "heads", "vocabulary", "length")
        sizes = {name: getattr(self, name) for name in names}
        if self.inner:
            more = {"kv_heads": self.kv_heads, "inner": self.inner}
            return Config.llama(**sizes, **more, recompute=self.recompute)
        return Config.gpt2(**sizes, bias=False, recompute=self.recompute)

    @property
    def tokens(self) -> int:
        """Of a step on each GPU."""
        return self.rows * self.accumulate * self.length // self.tp


@lru_cache(maxsize=1)
def read() -> tuple[Run, ...]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(_run(row) for row in csv.DictReader(file))


def _run(row: dict[str, str]) -> Run:
    words = {name: row.pop(name) for name in ("source", "gpu")}
    speed = float(row.pop("tokens_per_second"))
    flags = {name: row.pop(name) == "1" for name in ("recompute", "fitted")}
    sizes = {name: int(value) for name, value in row.items()}
    return Run(**words, **sizes, **flags, tokens_per_second=speed)


@cache
def costs_of(run: Run) -> Costs:
    model, place = Model.of(run.config), Place(run.tp, run.gpus // run.tp, run.per_node)
    how = {"recompute": run.recompute, "stage": run.stage, "lean": run.stage == 3}
    setting = Setting(run.rows, run.accumulate, **how)
    size = model.params_of_rank(run.tp) * setting.width * (place.dp - 1) / place.dp
    needs = Needs(0, None, 0, 0, sent=round(sum(moves(setting)) * size))
    return costs_of_model(model, setting, place, run.length, needs)


def error(run: Run, machine: Machine, constants: Constants) -> float:
    """By which part the predicted speed is above the published one."""
    took = step_seconds(costs_of(run), machine, constants).total
    return run.tokens / took / run.tokens_per_second - 1


class Errors(NamedTuple):
    """Of some runs: the median, what nine of ten are within, and both ends."""

    runs: int
    median: float
    within: float
    least: float
    most: float


def errors(runs: Sequence[Run], machine: Machine, constants: Constants) -> Errors:
    found = sorted(error(run, machine, constants) for run in runs)
    sizes = sorted(map(abs, found))
    ninth = sizes[math.ceil(0.9 * len(sizes)) - 1]
    return Errors(len(found), statistics.median(found), ninth, found[0], found[-1])


def fit(runs: Sequence[Run], machine: Machine, constants: Constants) -> Fitted:
    """The four figures with which the errors' logarithms are least, one after the other, in steps
    that become smaller; a run that is far off counts no more than one off by two thirds."""
    best, steps = [0.7, 100.0, 0.4, 0.8], [0.1, 200.0, 0.15, 0.15]
    least, most = [0.05, 0.0, 0.05, 0.05], [1.0, math.inf, 1.0, 1.0]

    def misfit(figures: Sequence[float]) -> float:
        rate = Fitted(*figures).rate(PER_NODE, machine.peak, machine.rates[0].moved)
        known = machine.changed(rates=(rate,))
        found = (abs(math.log(1 + error(run, known, constants))) for run in runs)
        return sum(min(size, 0.5) ** 1.2 for size in found)

    now = misfit(best)
    for turn in range(60):
        for i in range(4):
            for way in (-1, 1):
                other = list(best)
                other[i] = min(most[i], max(least[i], other[i] + way * steps[i]))
                if (size := misfit(other)) < now:
                    best, now = other, size
        if turn % 6 == 5:
            steps = [0.6 * step for step in steps]
    return Fitted(*best)
