"""A method that is late, raises, dies or does other work is named, and costs no other its figures.

Nothing here asserts a time.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
METHODS = '''
import os, signal, sys, time
sys.path.insert(0, {folder!r})
import _progress
import _ranks


def steps(me, faults, without, measured, groups):
    """Groups of methods, of which some have a fault: "where it happens:what:rank"."""

    def maker(name, number):
        where, what, rank = (faults.get(name, "") + "::").split(":")[:3]
        calls = []

        def fault(at):
            if where != at or str(me.rank) != rank:
                return
            if what == "sleep":
                time.sleep(600)
            if what == "raise":
                raise ValueError("it cannot be, " + name)
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(3)

        def step():
            calls.append(1)
            fault("step" if len(calls) > 3 else "first")
            return 3.0 if where == "other" and len(calls) > 1 else 2.0

        def make():
            fault("make")
            fault(f"make{{number}}")
            return _ranks.Method(step)

        return make

    for number, names in enumerate(groups, start=1):
        wanted = [name for name in names if name not in measured or name == "one"]
        here = {{name: maker(name, number) for name in wanted}}
        rows = _ranks.compare(me, _progress.made(here, without), 3, bound=1e-3)
        note = "measured " + ", ".join(row["name"] for row in rows)
        _progress.finished([row for row in rows if row["name"] not in measured], [note])
        measured = [*measured, *names]
'''


LATE = r"not done after \d+ s, but --limit allows "
OTHER = "rank 0 raised OtherWork: step 1: the loss of three is 3.0 but that of one is 2.0"


@pytest.fixture
def each(tmp_path, monkeypatch):
    """Run a benchmark whose methods have faults; where one sleeps, for 15 seconds at most."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    run = runpy.run_path(str(FOLDER / "_each.py"))["run"]
    file = tmp_path / "methods.py"
    file.write_text(METHODS.format(folder=str(FOLDER)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def measured(groups, **faults):
        limit = 15 if "sleep" in str(faults) else 200
        result = run(2, file, "steps", limit=limit, groups=groups, faults=faults)
        assert not list((tmp_path / "temporary").iterdir())
        return result, [row["name"] for row in result["methods"]]

    return measured


def test_without_a_fault_nothing_is_missing(each):
    result, names = each([["one", "two"], ["one", "three"]])
    assert names == ["one", "two", "three"]
    assert result.keys() == {"methods", "notes"}
    assert result["notes"] == ["measured one, two", "measured one, three"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("step:sleep:1", LATE + "15 s"),
        ("make:sleep:0", LATE),
        ("step:raise:1", "rank 1 raised ValueError: it cannot be, three"),
        ("step:die:1", "rank 1 was ended by SIGKILL"),
        ("first:exit:0", "rank 0 ended with exit"),
        ("other::", OTHER),
    ],
)
def test_a_method_with_a_fault_is_named_and_the_others_stay(each, fault, why, capfd):
    result, names = each([["one", "two"], ["one", "three", "four"]], three=fault)
    assert names == ["one", "two", "four"]
    assert all(row["ratio"] > 0 and row["losses"] == [2.0] * 3 for row in result["methods"])
    # What was whole is not measured again.
    assert result["notes"] == ["measured one, two", "measured one", "measured one, four"]
    (missing,) = result["missing"]
    assert missing["name"] == "three"
    assert re.match(why, missing["why"]), missing["why"]
    assert "three is left out (" in capfd.readouterr().err
    ranks_file = runpy.run_path(str(FOLDER / "_ranks.py"))
    text = ranks_file["as_text"]({"name": "some", "workload": {}, **result})
    assert f"missing: three: {missing['why']}" in text.splitlines()


def test_the_first_one_s_fault_makes_the_next_the_first(each):
    """Ratios to one that is missing would be ratios to nothing."""
    result, names = each([["one", "two"], ["one", "three"]], one="make2:raise:0")
    assert names == ["two", "three"] and result["methods"][0]["ratio"] == 1.0
    assert [one["name"] for one in result["missing"]] == ["one"]


@pytest.mark.slow
def test_several_faults_are_all_named(each):
    result, names = each([["one", "two", "three"]], two="make:raise:0", three="step:die:1")
    assert names == ["one"]
    assert [one["name"] for one in result["missing"]] == ["two", "three"]


def test_a_fault_outside_of_every_method_is_raised_where_nothing_is_measured(each):
    with pytest.raises(RuntimeError, match="raised TypeError"):
        each(7)
