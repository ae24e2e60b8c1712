"""docs/then_and_now.md says what the installed releases say; each place that it names exists."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests.course_lib.peers.then_and_now.parts import needs_deepspeed
from tests.course_lib.peers.then_and_now.probes import PROBES, sentences
from tests.support.mutation import exists
from tests.support.pool import ROOT
from tools.then_and_now import PAGE, releases, row

TEXT = PAGE.read_text()
# Rows of the five pages, of which the last column names where, by verdict.
ROWS = re.findall(r"^\|.+\| (run|changed|outside) \|.+\| (.*) \|$", TEXT, re.MULTILINE)
PLACES = sorted({x.strip("`") for _, where in ROWS for x in where.split("; ") if x[0] == "`"})


@pytest.fixture(scope="module")
def said():
    return sentences()


@needs_deepspeed
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_says_what_the_page_says(said, name):
    if releases() not in TEXT:
        pytest.skip(f"the page speaks of other releases; here: {releases()}")
    assert row(name, said[name]) in TEXT.splitlines()


def test_the_page_speaks_of_the_pinned_releases():
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    (line,) = re.findall(r"^Today is (.+)\.$", TEXT, re.MULTILINE)
    for name, release in (entry.split() for entry in line.split(", ")):
        assert pins[name] == release, "python -m tools.then_and_now"


def test_the_table_names_every_probe_and_no_other():
    assert {name for _, where in ROWS for name in re.findall("probe `(.+?)`", where)} == {*PROBES}
    assert len(ROWS) == 112
    for verdict, where in ROWS:
        assert "`" in where or verdict == "outside"


def resolves(place: str) -> bool:
    """A test, `notebook § heading`, or a symbol of the library."""
    if place.startswith("tests/"):
        return exists(place, ROOT)
    if " § " in place:
        notebook, heading = place.split(" § ")
        cells = json.loads((ROOT / notebook).read_text())["cells"]
        lines = "".join("".join(["\n", *cell["source"]]) for cell in cells).splitlines()
        return heading in [line.lstrip("# ") for line in lines if line.startswith("#")]
    module, _, symbol = place.partition(":")
    found = importlib.util.find_spec(module)
    tree = ast.parse(Path(found.origin).read_text()) if found else ast.Module([])
    return bool(found) and (not symbol or symbol in [getattr(x, "name", "") for x in tree.body])


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_the_page_names_exists(place):
    assert resolves(place)
