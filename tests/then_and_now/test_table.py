"""The table covers every topic of the pages, and each of its references leads somewhere."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
from pathlib import Path

import pytest

from course_lib.then_and_now import OUTSIDE, PAGES, RELEASES, VERDICTS, Row, Table, table
from tests.mutation import exists
from tests.pool import ROOT
from tests.then_and_now.topics import TOPICS

REFERENCES = sorted({one for _, row in table() for one in row.where})


@pytest.mark.parametrize("page", TOPICS)
def test_every_topic_of_the_page_has_its_row(page):
    rows = {}
    for row in PAGES[page]:
        rows.setdefault(row.topic, []).append(f"{row.topic} {row.then} {row.today}".casefold())
    assert list(rows) == list(TOPICS[page])  # all of them, in the page's order
    for topic, words in TOPICS[page].items():
        missing = [word for word in words if word.casefold() not in " ".join(rows[topic])]
        assert not missing, f"{topic} says nothing of {missing}"


def test_there_are_no_other_pages():
    assert list(PAGES) == list(TOPICS)


def resolves(reference: str) -> bool:
    """A test, `notebook § heading`, a symbol of the library, or a page to read on."""
    if reference.startswith("tests/"):
        return exists(reference, ROOT)
    if " § " in reference:
        notebook, heading = reference.split(" § ")
        return (ROOT / notebook).is_file() and heading in headings(notebook)
    if reference.startswith("course_lib."):
        module, _, symbol = reference.partition(":")
        return _has(module, symbol)
    project, _, page = reference.partition(": ")
    return project in ("DeepSpeed", "Transformers", "PEFT", "Datasets", "PyTorch/XLA") and page > ""


@functools.lru_cache
def headings(notebook: str) -> list[str]:
    cells = json.loads((ROOT / notebook).read_text())["cells"]
    lines = [
        line
        for cell in cells
        if cell["cell_type"] == "markdown"
        for line in "".join(cell["source"]).splitlines()
    ]
    return [line.lstrip("# ") for line in lines if line.startswith("#")]


def _has(module: str, symbol: str) -> bool:
    if importlib.util.find_spec(module) is None:
        return False
    if not symbol:
        return True
    tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text())
    return any(getattr(node, "name", None) == symbol for node in tree.body)


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_reference_leads_somewhere(reference):
    assert resolves(reference)


@pytest.mark.parametrize(
    "reference",
    [
        "tests/then_and_now/test_table.py::test_of_nothing",
        "tests/no_such_file.py::test_x",
        "notebooks/12_offload_and_estimators.ipynb § No such heading",
        "notebooks/99.ipynb § Where this lives",
        "course_lib.zero.engine:no_such_function",
        "course_lib.no_such_module",
        "somewhere",
    ],
)
def test_a_reference_that_leads_nowhere_is_noticed(reference):
    assert not resolves(reference)


def test_what_is_run_is_run_in_this_project_and_what_is_outside_is_not():
    for _, row in table(verdict="run"):
        assert any(one.startswith(("tests/", "notebooks/", "course_lib.")) for one in row.where), (
            row.topic
        )
    for _, row in table(verdict=OUTSIDE):
        assert ": " in row.where[0], f"{row.topic} names no page to go on with"


def test_rows_by_page_and_verdict():
    every = table()
    assert sum(every.counts.values()) == len(every) == sum(map(len, PAGES.values()))
    assert len(every) >= sum(map(len, TOPICS.values()))
    for page in PAGES:
        assert len(table(page)) == len(PAGES[page])
        for verdict in VERDICTS:
            chosen = table(page, verdict)
            assert {(of, row.verdict) for of, row in chosen} <= {(page, verdict)}
            assert len(chosen) == every.of(page).counts[verdict]
    with pytest.raises(ValueError, match="none of DeepSpeed integration, Trainer"):
        table("Models")
    with pytest.raises(ValueError, match="none of run, changed, outside"):
        table(verdict="gone")


ODD = Row("a|b", "then <x>", "run", "today & now", ("tests/x.py::test_y",))


def test_text_markdown_and_html_have_every_row():
    every = table()
    for text in (str(every), every.markdown(), every._repr_html_()):
        assert all(page in text for page in PAGES)
        assert every.caption in text or "&" in every.caption
    assert max(map(len, str(every).splitlines()[:-1])) <= 100
    assert every.markdown().count("\n| ") == len(every) + len(PAGES)
    assert every._repr_html_().count("<tr><td>") == len(every)
    assert repr(every) == f"<Table, {every.caption}>"
    assert not re.search("0x[0-9a-f]{6}", "".join(repr(row) for _, row in every))
    odd = Table((("page", ODD),))
    assert "| a\\|b | then <x> | run | today & now | tests/x.py::test_y |" in odd.markdown()
    assert "<td>then &lt;x&gt;</td>" in odd._repr_html_()
    assert "where: tests/x.py::test_y" in str(odd)
    assert odd.caption.startswith("1 rows: 1 run, 0 changed, 0 outside; today is torch ")


def test_the_caption_names_what_is_installed_in_another_release(monkeypatch):
    import importlib.metadata as metadata

    here = {**{name: f"{release}.0" for name, release in RELEASES.items()}, "deepspeed": "0.19.8"}
    monkeypatch.setattr(metadata, "version", lambda name: here[name])
    assert "Here other releases" not in table().caption
    here |= {"transformers": "5.2.3", "torch": "2.13.1+cpu"}
    assert table().caption.endswith("Here other releases are installed: transformers 5.2.3.")


def test_a_table_needs_neither_deepspeed_nor_transformers():
    import subprocess
    import sys

    script = (
        "import sys; from course_lib.then_and_now import table; str(table()); "
        "print({'deepspeed', 'transformers', 'accelerate', 'torch'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout.strip() == "set()", ran.stdout + ran.stderr
