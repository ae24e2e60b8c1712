"""Published training runs, and the fit of a GPU's four figures to half of them.

published_runs.csv has MPT's tables (llm-foundry, scripts/train/benchmarking) and runs of five
other sources. docs/cost_model.md names them, and the errors on the runs that are not fitted.
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
from course_lib.estimate.time.machine import Constants, Machine, Place
from course_lib.estimate.time.presets import Fitted
from course_lib.estimate.time.step import step_seconds
from course_lib.gpt import Config

FILE = Path(__file__).with_name("published_runs.csv")
PER_NODE = 8  # GPUs per node in the fitted runs


@dataclass(frozen=True)
class Run:
    """One row: a decoder, and the tokens that each GPU trained per second. Without `inner` it has
    GPT-2's shapes without biases, otherwise Llama's shapes."""

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
        """Tokens of a step on each GPU."""
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
    """Compute the relative error of the predicted speed (positive if it is too high)."""
    took = step_seconds(costs_of(run), machine, constants).total
    return run.tokens / took / run.tokens_per_second - 1


class Errors(NamedTuple):
    """Errors of some runs: the median, the limit for nine in ten, and both ends."""

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
    """Fit the four figures to the least logarithms of errors, one after the other, in shrinking
    steps. Runs that are far off count no more than a run that is off by two thirds."""
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
