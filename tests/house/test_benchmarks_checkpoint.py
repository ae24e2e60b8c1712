"""`course bench checkpoint`, small: the same training saved and loaded three ways; no time."""

from __future__ import annotations

import sys

import pytest

from tests.house.test_benchmarks_peers import bench, refused
from tests.house.test_benchmarks_zero import with_deepspeed

MODEL = {"hidden": 64, "heads": 4, "layers": 2, "sequence": 6, "batch": 4, "vocabulary": 301}
WAYS = ("course_lib", "torch-dcp", "deepspeed")


@pytest.mark.parametrize(
    "ways", [WAYS[:2], pytest.param(WAYS, marks=[pytest.mark.slow, with_deepspeed])]
)
def test_all_ways_save_and_load_the_same_training(ways: tuple[str, ...]) -> None:
    result, _ = bench("checkpoint", {**MODEL, "only": ",".join(ways)}, runs=1)
    rows = {row["name"]: row for row in result["methods"]}
    unverified = rows.pop("course_lib-load-unverified")
    assert list(rows) == [f"{way}-{verb}" for verb in ("save", "load") for way in ways]
    assert unverified["losses"] == rows["course_lib-load"]["losses"]
    first = rows["course_lib-save"]
    for name, row in rows.items():
        way, _, verb = name.rpartition("-")
        assert row["losses"] == pytest.approx(first["losses"], rel=1e-5) and row["losses"][0] > 0
        assert row["ratio"] > 0 and row["rival"] == f"course_lib-{verb}" and row["against"] > 0
        assert row["disk_mb"] == rows[f"{way}-save"]["disk_mb"] > 0
    assert rows["course_lib-save"]["ratio"] == rows["course_lib-load"]["ratio"] == 1.0
    disk = {way: rows[f"{way}-save"]["disk_mb"] for way in ways}
    if "deepspeed" in ways:  # which has a master copy of float32 weights
        assert disk["course_lib"] < disk["deepspeed"]
    assert rows["course_lib-save"]["must_mb"] < 0.2  # no tensor is gathered


def test_a_workload_that_cannot_be_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # a benchmark puts its folder there
    told = refused("checkpoint", "--set", "only=fsdp")
    assert "the ways are course_lib, torch-dcp, deepspeed" in told
    assert "multiple" in refused("checkpoint", "--set", "batch=3")
