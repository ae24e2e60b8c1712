"""`course bench scale`: which configurations, what they send, what an efficiency is. No time."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_classroom.cli import app, author

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = {"vocabulary": 66, "length": 8, "hidden": 24, "layers": 1, "heads": 4, "rows": 12}
ROW = {
    "scaling": "strong", "ranks": 2, "dp": 1, "tp": 2, "seconds": 0.5, "ratio": 1.25, "mfu": 0.25,
    "efficiency": 0.4, "predicted": 0.4, "predicted_efficiency": 0.5,
    "bytes": {"tp": {"counted": 4096.0, "form": 4096.0}, "dp": {"counted": 0.0, "form": 0.0}},
}  # fmt: skip


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # a benchmark puts its folder there
    return runpy.run_path(str(FOLDER / "scale.py"))


def test_a_world_has_weak_and_strong_over_each_axis_and_over_both(scale):
    workload = {**scale["WORKLOAD"], **SMALL}
    four = [(way.name, way.dp, way.tp, way.rows, way.layers) for way in scale["ways"](workload, 4)]
    assert four == [
        ("one rank", 1, 1, 12, 1),
        ("tp 4, strong", 1, 4, 12, 1), ("tp 4, weak", 1, 4, 12, 4),
        ("dp 4, strong", 4, 1, 3, 1), ("dp 4, weak", 4, 1, 12, 1),
        ("dp 2 × tp 2, strong", 2, 2, 6, 1), ("dp 2 × tp 2, weak", 2, 2, 12, 2),
    ]  # fmt: skip
    assert [way.name for way in scale["ways"](workload, 1)] == ["one rank"]
    for world in (2, 3, 4):
        one, *others = (scale["flops_of"](workload, w) for w in scale["ways"](workload, world))
        strong, weak = others[::2], others[1::2]
        assert set(strong) == {one}
        assert weak[1] == world * one  # over dp; over tp the ends do not grow along
        assert one < weak[0] < world * one


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow),
                                   pytest.param(4, marks=pytest.mark.slow)])  # fmt: skip
def test_every_configuration_sends_its_forms_and_has_a_prediction(scale, world):
    result = scale["measure"]({**SMALL, "ranks": world, "stage": 1 + world % 3}, runs=1)
    one, *others = result["methods"]
    assert one["ratio"] == one["efficiency"] == one["predicted_efficiency"] == 1.0
    assert one["bytes"] == {axis: {"counted": 0.0, "form": 0.0} for axis in ("tp", "dp")}
    names = [way.name for way in scale["ways"](result["workload"], world)]
    assert [row["name"] for row in result["methods"]] == [one["name"], *names[1:]]
    for row in others:
        for axis in ("tp", "dp"):
            sent = row["bytes"][axis]
            assert sent["counted"] == sent["form"]
            assert (sent["form"] > 0) == (row[axis] > 1)
        assert row["dp"] * row["tp"] == row["ranks"] == world
        assert row["mfu"] > 0 and row["predicted"] > 0 and row["predicted_efficiency"] > 0
        if row["scaling"] == "strong":
            assert row["losses"] == pytest.approx(one["losses"], rel=1e-4)
            assert row["efficiency"] == pytest.approx(1 / world / row["ratio"], abs=1e-4)
    by_name = {row["name"]: row for row in others}
    weak, strong = by_name[f"dp {world}, weak"], by_name[f"dp {world}, strong"]
    assert weak["efficiency"] == pytest.approx(1 / weak["ratio"], abs=1e-4)
    assert weak["bytes"] == strong["bytes"]  # gradients do not grow with the rows
    assert result["worlds"][0]["ranks"] == world
    assert len(result["worlds"][0]["peak_gflops"]) == 2
    json.dumps(result)


@pytest.mark.slow
def test_bytes_that_are_not_the_forms_end_the_run(scale, tmp_path, capfd):
    file = tmp_path / "wrong.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\n"
        "import scale\nimport course_lib.estimate.traffic as traffic\n\n\n"
        "def steps(me, **arguments):\n"
        "    right = traffic.must_bytes\n"
        "    traffic.must_bytes = lambda *a, **k: {'x': sum(right(*a, **k).values()) + 4}\n"
        "    return scale.steps(me, **arguments)\n"
    )
    workload = {**scale["WORKLOAD"], **SMALL, "ranks": 2}
    with pytest.raises(RuntimeError, match="of the benchmark failed"):
        scale["_ranks"].run(2, file, "steps", workload=workload, runs=1, cores=2)
    assert "but the closed form gives" in capfd.readouterr().err


def test_more_ranks_than_cores_is_said(scale):
    shares = {1: 1.0, 2: 1.0, 3: 1.5, 4: 2.0}
    worlds = [{"ranks": n, "oversubscribed": m, "device": "cpu"} for n, m in shares.items()]
    said = scale["_scale_text"].notes(worlds, 2)
    assert [line.split(",")[0] for line in said] == [
        "3 ranks share 2 core(s) (oversubscribed 1.5 times)",
        "4 ranks share 2 core(s) (oversubscribed 2 times)",
    ]
    assert "exceed 50% of the value with one core" in said[1]
    on_gpus = [{"ranks": 2, "oversubscribed": 1.0, "device": "cuda"}]
    assert "no prediction on GPUs" in scale["_scale_text"].notes(on_gpus, 2)[0]


def test_the_picture_has_the_articles_eight_bars_beside_those_of_here(scale):
    result = {
        "name": "scale", "workload": {"ranks": 2}, "notes": ["a note"],
        "methods": [
            {**ROW, "name": "one rank", "scaling": "none", "tp": 1},
            {**ROW, "name": "tp 2, strong"},
            {**ROW, "name": "dp 2, weak", "scaling": "weak", "dp": 2, "tp": 1,
             "predicted_efficiency": None},
        ],
    }  # fmt: skip
    alt = scale["picture"](result).alt
    assert "strong scaling, here: tp 2: measured 40 %, predicted 50 %." in alt
    assert "weak scaling, here: dp 2: measured 40 %." in alt
    for name, gpus, percent in (("1.2B", 1, 100), ("8.3B", 8, 77), ("1.2B", 64, 96),
                                ("4.2B", 256, 79), ("8.3B", 512, 74)):  # fmt: skip
        part = alt.split(f"{name} {gpus} GPUs: ")[1].split(";")[0].split(". ")[0]
        assert part.rstrip(".").endswith(f"published {percent} %")
    text = scale["as_text"](result)
    assert "tp 2, strong" in text and "4,096" in text and text.endswith("a note")


def test_rows_that_cannot_be_shared_out_are_refused_before_anything_runs(scale):
    with pytest.raises(ValueError, match="rows=10 cannot be shared by 3 replicas"):
        scale["measure"]({**SMALL, "rows": 10})
    with pytest.raises(ValueError, match=r"ranks=-1 must be 0 \(1 to 4 in turn\)"):
        scale["measure"]({"ranks": -1})


def test_a_plot_is_refused_where_it_cannot_be(tmp_path, monkeypatch):
    names = {"measure": lambda: None, "picture": None}  # neither is reached
    monkeypatch.setattr(author.runpy, "run_path", lambda path: names)
    there = CliRunner().invoke(app, ["bench", "scale", "--plot", str(tmp_path / "no" / "x.png")])
    assert there.exit_code == 2 and "there is no folder" in there.output
    del names["picture"]
    none = CliRunner().invoke(app, ["bench", "overlap", "--plot", "x.png"])
    assert none.exit_code == 2 and "overlap has no picture" in none.output
