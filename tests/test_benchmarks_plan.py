"""`course bench plan` runs every plan of a world beside its prediction. No time is asserted."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SMALL = {"ranks": 2, "vocabulary": 64, "length": 8, "hidden": 16, "layers": 1, "heads": 2}


@pytest.fixture
def plan():
    yield runpy.run_path(str(FOLDER / "plan.py"))
    if str(FOLDER) in sys.path:
        sys.path.remove(str(FOLDER))


def test_every_plan_of_the_world_has_a_time_and_a_prediction(plan):
    result = plan["measure"]({**SMALL, "tokens": 64}, runs=1)
    ways = plan["_ways"]({**plan["WORKLOAD"], **SMALL, "tokens": 64}, 2)
    assert [one["name"] for one in result["methods"]] == ["one rank", *(p.name for p in ways)]
    assert {(p.place.tp, p.place.sequence) for p in ways} == {(1, False), (2, False), (2, True)}
    assert {p.setting.stage for p in ways} == {0, 1, 2, 3}
    for one in result["methods"]:
        off = one["predicted_ratio"] / one["ratio"] - 1
        assert one["seconds"] > 0 and one["predicted"] > 0
        if one["name"] != "one rank":
            assert one["off"] == pytest.approx(off, abs=2e-3 * (1 + abs(off)))
    first = min(result["methods"][1:], key=lambda one: one["predicted"])
    fastest = min(result["methods"][1:], key=lambda one: one["ratio"])
    assert result["first"]["name"] == first["name"]
    assert result["first"]["fastest"] == fastest["name"]
    slower = first["ratio"] / fastest["ratio"] - 1
    assert result["first"]["slower_than_the_fastest"] == pytest.approx(slower, abs=1e-3)
    text = plan["as_text"](result)
    assert "ranked first: " in text and all(p.name in text for p in ways)


def test_one_rank_is_the_same_work_as_the_reference(plan):
    alone = plan["_ways"]({**plan["WORKLOAD"], **SMALL, "tokens": 64}, 1)
    assert [(p.setting.rows, p.setting.stage, p.place.world) for p in alone] == [(8, 0, 1)]
