"""The cost model beside published runs: what is fitted, what is held back, what the page says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from course_lib.estimate.setting import Setting
from course_lib.estimate.time.costs import ModelCounts
from course_lib.estimate.time.machine import Place
from course_lib.estimate.time.presets import A100, H100, constants, dgx_a100, hgx_h100, hgx_h200
from tools import published_runs as published

PAGE = (Path(__file__).parents[3] / "docs" / "cost_model.md").read_text()
KINDS = {"H100": hgx_h100(), "A100": dgx_a100(), "H200": hgx_h200()}
KINDS["A100 40 GB"] = KINDS["A100"].changed(
    memory=40 * 10**9, rates=(replace(KINDS["A100"].rates[0], moved=1555e9),)
)
CONSTANTS = constants(KINDS["A100"])


def of(gpu: str, *, fitted: bool | None = None, source: str = "MPT") -> list[published.Run]:
    runs = (run for run in published.read() if (run.gpu, run.source) == (gpu, source))
    return [run for run in runs if fitted in (None, run.fitted)]


def test_runs_that_were_held_back_are_predicted():
    for gpu in ("H100", "A100"):
        held = published.errors(of(gpu, fitted=False), KINDS[gpu], CONSTANTS)
        assert held.runs >= 25 and abs(held.median) < 0.05 and held.within < 0.2
        every = published.errors(of(gpu), KINDS[gpu], CONSTANTS)
        known = KINDS[gpu]
        assert (known.runs, known.within) == (every.runs, pytest.approx(every.within, abs=0.005))


def test_runs_of_other_sources_are_predicted():
    """From years in which attention is fused and gradients overlap, as the cost model assumes."""
    runs = [run for run in published.read() if run.source in ("torchtitan", "IBM and Meta")]
    sizes = sorted(abs(published.error(run, KINDS[run.gpu], CONSTANTS)) for run in runs)
    assert len(sizes) == 12 and sizes[5] < 0.07 and sizes[10] < 0.2


def test_the_page_says_what_is_computed():
    rows = re.findall(r"\| ([^|]+) \| ([AH]\d00[^|]*) \| (\w[^|]*) \| (\d+) \|(.*)\|", PAGE)
    assert sum(int(count) for _, _, _, count, _ in rows) == len(published.read())
    for source, gpu, which, count, rest in rows:
        fitted = {"fitted": True, "held back": False}.get(which.strip())
        found = published.errors(of(gpu, fitted=fitted, source=source), KINDS[gpu], CONSTANTS)
        assert int(count) == found.runs
        shown = [float(x) for x in re.findall(r"[+-]?\d+", rest)]
        assert shown == [round(100 * x) for x in found[1:]], (source, gpu, which, found)


def test_runs_that_fitted_fit():
    fits = []
    for gpu in KINDS:
        for run in of(gpu):
            how = {"stage": 3, "lean": True, "recompute": run.recompute}
            setting, place = Setting(run.rows, run.accumulate, **how), Place(1, run.gpus, 8)
            needs = ModelCounts(run.config, setting, place).needs(setting, place, run.length)
            fits.append(needs.gpu <= KINDS[gpu].memory * 1.05)
    assert sum(fits) / len(fits) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "want"), [("H100", H100), ("A100", A100)])
def test_the_figures_are_those_of_the_fit(gpu, want):
    found = published.fit(of(gpu, fitted=True), KINDS[gpu], CONSTANTS)
    assert found[:4] == pytest.approx(want[:4], rel=0.01)
