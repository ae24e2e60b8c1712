"""Committed notebooks: executed, with stable ids, and no path, user, time or widget in them."""

from __future__ import annotations

import base64
import functools
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_classroom.notebook import notebooks, release

ROOT = Path(__file__).resolve().parents[2]
EXECUTED = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*/*.ipynb")])
PAGE = 95  # characters of an output on a laptop's screen, beside the list of files
LESSONS = sorted(ROOT.glob("notebooks/*.ipynb"))
FOREIGN = re.compile(
    r"/home/|/root\b|/tmp/|/work/|/opt/|site-packages|0x[0-9a-f]{6,}|\x1b\["
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d"
)


executed = pytest.mark.parametrize("path", EXECUTED, ids=lambda path: path.stem)
lessons = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


@functools.cache
def read(path: Path):
    return nbformat.read(path, as_version=4)


@executed
def test_a_committed_notebook_is_normal(path):
    text = path.read_text(encoding="utf-8")
    assert release.as_text(notebooks.normalise(read(path))) == text


@executed
def test_a_committed_notebook_was_executed_from_top_to_bottom(path):
    cells = [c for c in read(path).cells if c.cell_type == "code"]
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        errors = [o for o in cell.outputs if o.output_type == "error"]
        assert bool(errors) == ("raises-exception" in cell.metadata.get("tags", []))


@lessons
def test_what_a_lesson_shows_of_the_library_is_the_library_of_today(path, capsys):
    """A strict rerun leaves these outputs out, so that a library may change by a comment."""
    (cell,) = [c for c in read(path).cells if "inspect.getsource(" in c.source]
    exec(cell.source, {})
    (shown,) = cell.outputs
    assert shown["text"] == capsys.readouterr().out


@executed
def test_a_committed_notebook_tells_nothing_of_the_machine_it_ran_on(path):
    for cell in read(path).cells:
        outputs = list(cell.get("outputs", []))
        shown = [cell.source, *[str({k: v for k, v in o.items() if k != "data"}) for o in outputs]]
        shown += [v for o in outputs for k, v in o.get("data", {}).items() if k != "image/png"]
        for text in shown:
            assert not FOREIGN.search(text), FOREIGN.search(text)
        assert not [o for o in outputs if o.get("name") == "stderr"]


@executed
def test_a_committed_notebook_is_small_its_figures_have_words_and_its_tables_fit(path):
    """A long sentence breaks between words; a row with columns would not be one any more."""
    assert path.stat().st_size < 1_500_000
    for cell in read(path).cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                assert len(base64.b64decode(output.data["image/png"])) < 200_000
                assert len(output.metadata["image/png"]["alt"]) > 40
            for line in [] if "getsource(" in cell.source else output.get("text", "").splitlines():
                row = re.search(r"\S {2,}\S", line.removeprefix("[rank 0]"))
                assert row is None or len(line) <= PAGE, f"{len(line)} characters: {line}"


@executed
def test_no_cell_of_words_is_long_or_says_just(path):
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            assert not re.search(r"\bjust\b", cell.source)
            assert len(cell.source.split()) < 220, f"cut this cell: {cell.source[:60]}"


@lessons
def test_links_between_notebooks_lead_somewhere(path):
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\((\.\.?/[^)#]+)\)", cell.source):
                assert (path.parent / target).exists(), target


def test_normalising_keeps_an_errors_words_and_leaves_out_what_shows_nothing():
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
    traces = (["\x1b[31mFile /home/ada/x.py:3\x1b[0m", "no"], ["\x1b[31mrank 0\x1b[0m\nno"])
    outputs = [new_output("display_data", data=data) for data in ({}, widget)]
    outputs += [new_output("error", ename="E", evalue="no", traceback=one) for one in traces]
    cell = new_code_cell("1", outputs=outputs, metadata={"nbgrader": {"grade_id": "mine"}})
    (clean,) = notebooks.normalise(new_notebook(cells=[cell])).cells
    assert [one.traceback for one in clean.outputs] == [["E: no"], ["rank 0", "no"]]
    assert clean.id == "mine"


def test_a_refreshed_notebook_ran_in_this_python_with_the_world_asked_for(tmp_path):
    path = tmp_path / "a.ipynb"
    source = "import os, sys\nprint(os.environ['WORLD_SIZE'], sys.executable == EXECUTABLE)"
    source = source.replace("EXECUTABLE", repr(sys.executable))
    nbformat.write(new_notebook(cells=[new_code_cell(source)]), path)
    notebooks.refresh([path], 3)
    assert read(path).cells[0].outputs[0].text == "3 True\n"
