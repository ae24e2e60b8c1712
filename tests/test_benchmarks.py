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
    return _ranks.compare(
        me,
        {{"one": _ranks.Method(lambda: 2.0), "another": _ranks.Method(lambda: 2.0 + off)}},
        runs,
        bound=1e-3,
        limit=0,
    )
"""


def test_methods_that_do_other_work_are_not_compared(overlap, tmp_path, capfd):
    file = tmp_path / "two.py"
    file.write_text(TWO.format(folder=str(FOLDER)))
    run = overlap["_ranks"].run
    same = run(2, file, "steps", off=1e-3, runs=9)[0]
    assert [one["name"] for one in same] == ["one", "another"]
    assert [one["runs"] for one in same] == [5, 5]  # out of time, but no fewer than five
    with pytest.raises(RuntimeError, match="of the benchmark failed"):
        run(2, file, "steps", off=3e-3)
    said = capfd.readouterr().err
    assert "step 0: the loss of another is 2.003, that of one 2.0" in said
    assert "do not do the same work" in said
    me = SimpleNamespace(rank=0)
    with pytest.raises(RuntimeError, match="step 1: the loss of another is nan"):
        overlap["_ranks"]._same({"one": [2.0, 2.0], "another": [2.0, math.nan]}, 1e-3, me)
