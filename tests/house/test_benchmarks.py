"""The benchmarks run, compare equal work, and say so in the shape that all of them share.

Nothing here asserts a time: only that figures are there, and that counts and bytes are exact.
"""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
KEYS = ["name", "ratio", "seconds", "collectives", "must_mb", "moved_mb", "peak_mb", "held_mb"]
SMALL = {"ranks": 2, "tokens": 300, "hidden": 40, "outputs": 12}
LAYERS = {"ranks": 2, "vocabulary": 64, "length": 8, "hidden": 16, "layers": 1, "heads": 2}


@pytest.fixture
def load(monkeypatch):
    """The names of a file of benchmarks/, whose folder is on the path meanwhile."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda name: runpy.run_path(str(FOLDER / f"{name}.py"))


def test_overlap_compares_equal_work(load):
    overlap = load("overlap")
    result = overlap["measure"](SMALL, runs=3)
    assert result["name"] == "overlap" and result["workload"]["runs"] == 3
    plain, under = result["methods"]
    assert [plain["name"], under["name"]] == ["synchronous", "overlapped"]
    assert list(plain) == list(under) == [*KEYS, "losses", "runs"]
    assert plain["ratio"] == 1.0 and under["ratio"] > 0
    assert plain["losses"] == under["losses"] and len(set(plain["losses"])) == 1
    assert plain["losses"][0] > 0
    sent = 2 * 1 * 300 * 40 * 4 / 2 / 1e6  # one sum of dX, by the ring's closed form
    assert [m["collectives"] for m in (plain, under)] == [1, 1]
    assert [m["must_mb"] for m in (plain, under)] == [sent, sent]
    assert "overlapped" in overlap["as_text"](result)


TWO = """
import sys
sys.path.insert(0, {folder!r})
import _ranks


def steps(me, off, runs=2):
    methods = {{"one": _ranks.Method(lambda: 2.0), "another": _ranks.Method(lambda: 2.0 + off)}}
    return _ranks.compare(me, methods, runs, bound=1e-3, limit=0)
"""


def test_methods_that_do_other_work_are_not_compared(load, tmp_path, capfd):
    file = tmp_path / "two.py"
    file.write_text(TWO.format(folder=str(FOLDER)))
    of_ranks = load("overlap")["_ranks"]
    same = of_ranks.run(2, file, "steps", off=1e-3, runs=9)[0]
    assert [one["name"] for one in same] == ["one", "another"]
    assert [one["runs"] for one in same] == [5, 5]  # out of time, but no fewer than five
    with pytest.raises(RuntimeError, match="of the benchmark failed"):
        of_ranks.run(2, file, "steps", off=3e-3)
    said = capfd.readouterr().err
    assert "step 0: the loss of another is 2.003 but that of one is 2.0" in said
    assert "The methods do different work" in said
    me = SimpleNamespace(rank=0)
    with pytest.raises(RuntimeError, match="step 1: the loss of another is nan"):
        of_ranks._same({"one": [2.0, 2.0], "another": [2.0, math.nan]}, 1e-3, me)


def test_every_plan_of_the_world_has_a_time_and_a_prediction(load):
    plan = load("plan")
    result = plan["measure"]({**LAYERS, "tokens": 64}, runs=1)
    ways = plan["_ways"]({**plan["WORKLOAD"], **LAYERS, "tokens": 64}, 2)
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


def test_one_rank_is_the_same_work_as_the_reference(load):
    plan = load("plan")
    alone = plan["_ways"]({**plan["WORKLOAD"], **LAYERS, "tokens": 64}, 1)
    assert [(p.setting.rows, p.setting.stage, p.place.world) for p in alone] == [(8, 0, 1)]
