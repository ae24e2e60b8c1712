"""Eight published bars of a chart, and the two constants that are fitted to them.

They show Megatron-LM's weak scaling on DGX-2H nodes (Shoeybi et al. 2019, arXiv 1909.08053) for
GPT-2 models of 1.2 to 8.3 billion parameters. docs/cost_model.md explains the residuals. Lesson 15.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from course_lib.estimate.setting import Setting
from course_lib.estimate.time.costs import Costs, costs
from course_lib.estimate.time.machine import Constants, Link, Machine, Place, Rate
from course_lib.estimate.time.step import step_seconds
from course_lib.gpt import Config

LENGTH, VOCABULARY, ROWS, REPLICAS = 1024, 51200, 8, 64
# Seconds of a ring's step in NCCL's own model (src/graph/tuning.cc: ring, Simple).
NVLINK, PCIE, NETWORK = 3.4e-6, 5.7e-6, 9.6e-6
BASELINE = 39e12  # flops per second of the smallest model on one GPU, which is 100 %


@dataclass(frozen=True)
class Bar:
    """One model on `tp` ranks, in 1 or 64 replicas, and its published efficiency."""

    name: str
    hidden: int
    heads: int
    layers: int
    tp: int
    dp: int
    percent: float

    @property
    def config(self) -> Config:
        sizes = {"hidden": self.hidden, "layers": self.layers, "heads": self.heads}
        return Config.gpt2(vocabulary=VOCABULARY, length=LENGTH, recompute=True, **sizes)


MODELS = (("1.2B", 1536, 16, 40, 1), ("2.5B", 1920, 20, 54, 2))
MODELS += (("4.2B", 2304, 24, 64, 4), ("8.3B", 3072, 32, 72, 8))
ALONE = tuple(
    Bar(*model, 1, percent) for model, percent in zip(MODELS, (100, 95, 82, 77), strict=True)
)
REPLICATED = tuple(
    Bar(*model, REPLICAS, percent) for model, percent in zip(MODELS, (96, 83, 79, 74), strict=True)
)
BARS = ALONE + REPLICATED
SETTING = Setting(ROWS, recompute=True, precision="float16")
ONE = next(bar for bar in REPLICATED if bar.name == "4.2B")  # fitted with the bars of 1 replica


@lru_cache(maxsize=len(BARS))
def costs_of(bar: Bar) -> Costs:
    return costs(bar.config, SETTING, Place(bar.tp, bar.dp, 16), LENGTH)


@lru_cache(maxsize=1)
def dgx_2h() -> Machine:
    """Describe nodes of 16 V100 GPUs on NVSwitch with 150 GB/s each in one direction, and 8
    InfiniBand links of 100 Gb/s. The products' rate is chosen so that the smallest model reaches 39
    TFLOP/s on one GPU, while all other operations run at the memory's 900 GB/s."""
    rates, links = (Rate(16, 1.0, 900e9),), (Link(150e9, NVLINK), Link(8 * 12.5e9, NETWORK))
    host = {"host": 16e9, "host_memory": 1536 * 10**9, "host_moved": 256e9}
    peaks = {"peak": 125e12, "single": 15.7e12, "precision": "float16"}
    source = "NVIDIA, DGX-2H and Tesla V100 data sheets"
    machine = Machine("DGX-2H", 16, 32 * 10**9, rates, *links, **host, **peaks, source=source)
    first = costs_of(ALONE[0])
    endless = machine.changed(rates=(Rate(16, float("inf"), 900e9),))
    left = first.passes.flops / BASELINE - step_seconds(first, endless, Constants()).total
    return machine.changed(rates=(Rate(16, first.passes.flops / left, 900e9),))


def percent(bar: Bar, constants: Constants) -> float:
    """Predict the efficiency of a bar: a rank's flops per second in percent of the baseline."""
    step = step_seconds(costs_of(bar), dgx_2h(), constants)
    return 100 * costs_of(bar).passes.flops / step.total / BASELINE


def residuals(constants: Constants, bars: Sequence[Bar] = BARS) -> list[float]:
    """Compute the percentage points by which the prediction exceeds each bar."""
    return [percent(bar, constants) - bar.percent for bar in bars]


@lru_cache(maxsize=8)
def fit(bars: Sequence[Bar] = BARS, *, worst: bool = False) -> Constants:
    """Fit the constants by least squares, or with `worst` by the smallest maximum residual.

    A grid narrows around its best point, because the misfit has one minimum.
    """
    best, reach, spread = Constants(0.5, 0.05), 0.45, 0.05  # half the widths of the grid

    def misfit(constants: Constants) -> float:
        found = residuals(constants, bars)
        return max(map(abs, found)) if worst else sum(x * x for x in found)

    for _ in range(12):
        around = [
            Constants(max(0.01, best.reach + reach * i / 4), max(0.0, best.spread + spread * j / 4))
            for i in range(-4, 5)
            for j in range(-4, 5)
        ]
        best, reach, spread = min(around, key=misfit), reach / 2, spread / 2
    return best
