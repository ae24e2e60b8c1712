"""The benchmarks run, compare equal work, and say so in the shape that all of them share.

Nothing here asserts a time: only that figures are there, and that counts and bytes are exact.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
KEYS = ["name", "ratio", "seconds", "collectives", "must_mb", "moved_mb", "peak_mb", "held_mb"]
SMALL = {"ranks": 2, "tokens": 300, "hidden": 40, "outputs": 12}


@pytest.fixture
def overlap():
    yield runpy.run_path(str(FOLDER / "overlap.py"))
    if str(FOLDER) in sys.path:
        sys.path.remove(str(FOLDER))


def test_overlap_compares_equal_work(overlap):
    result = overlap["measure"](SMALL, runs=3)
    assert result["name"] == "overlap" and result["workload"]["runs"] == 3
    plain, under = result["methods"]
    assert [plain["name"], under["name"]] == ["synchronous", "overlapped"]
    assert list(plain) == list(under) == [*KEYS, "losses"]
    assert plain["ratio"] == 1.0 and under["ratio"] > 0
    assert plain["losses"] == under["losses"] and len(set(plain["losses"])) == 1
    assert plain["losses"][0] > 0
    sent = 2 * 1 * 300 * 40 * 4 / 2 / 1e6  # one sum of dX, by the ring's closed form
    assert [m["collectives"] for m in (plain, under)] == [1, 1]
    assert [m["must_mb"] for m in (plain, under)] == [sent, sent]
    assert "overlapped" in overlap["as_text"](result)


def test_a_benchmark_whose_rank_fails_says_so_and_leaves_nobody(overlap, capfd):
    with pytest.raises(RuntimeError, match="of the benchmark failed; see above"):
        overlap["measure"]({**SMALL, "tokens": -1}, runs=3)
    assert "negative dimension" in capfd.readouterr().err
