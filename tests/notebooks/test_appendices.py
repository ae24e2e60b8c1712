"""The appendices: links that lead to a cell, a formula sheet whose every line is proved and run."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from course_classroom.workspace.handed_out import items, title

ROOT = Path(__file__).resolve().parents[2]
BOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
APPENDICES = [path for path in BOOKS if path.name.startswith("appendix_")]
SHEET = ROOT / "notebooks/appendix_d_formula_sheet.ipynb"
LINK = re.compile(r"\]\((\w+\.ipynb)(?:#([^)]*))?\)")
ROW = re.compile(r"^\|([A-Z]\d+)\|(.*)\|$", re.MULTILINE)


def cells(path: Path) -> list[NotebookNode]:
    return nbformat.read(path, as_version=4).cells


def text(path: Path, kind: str) -> str:
    return "\n".join(cell.source for cell in cells(path) if cell.cell_type == kind)


def target(path: Path, fragment: str) -> NotebookNode | None:
    """The cell that a link's fragment names, in JupyterLab's way: its id, or its heading."""
    name, _, value = fragment.partition("=")
    for cell in cells(path):
        if name == "cell-id" and cell.id == value:
            return cell
        headings = re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE)
        if not value and name in {heading.replace(" ", "-") for heading in headings}:
            return cell
    return None


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_link_to_another_notebook_leads_to_a_cell_of_it(path):
    for name, fragment in LINK.findall(text(path, "markdown")):
        other = path.parent / name
        assert other.exists(), f"{path.name} links to {name}, which is not there"
        cell = target(other, fragment) if fragment else True
        assert cell is not None, f"{path.name} links to {fragment} of {name}: no such cell there"


def lines() -> dict[str, str]:
    """The rows of the sheet's tables by their label."""
    found = ROW.findall(text(SHEET, "markdown"))
    assert len(found) == len(dict(found)), "a label stands in the sheet twice"
    return dict(found)


def test_the_sheet_has_the_formulas_that_it_is_for():
    assert {label[0] for label in lines()} == set("CTZAFL")
    for formula in (
        "2(n−1)/n · B",
        "8Φ",
        "16/d",
        "10 + 24/t + 5as/(ht)",
        "α + β",
        "(p−1)/(m + p−1)",
    ):
        assert any(formula in row for row in lines().values()), formula


@pytest.mark.parametrize("label", lines())
def test_each_line_of_the_sheet_is_linked_to_a_cell_that_asserts_something(label):
    links = LINK.findall(lines()[label])
    assert links, f"{label} has no proof"
    for name, fragment in links:
        cell = target(SHEET.parent / name, fragment)
        assert cell.cell_type == "code" and "assert" in cell.source, f"{label}: {name}#{fragment}"


def test_each_line_of_the_sheet_is_evaluated_below_its_table():
    """What a cell has printed: `line` prints after it has compared."""
    label = ""
    for cell in cells(SHEET):
        if cell.cell_type == "markdown":
            rows = [found for found, _ in ROW.findall(cell.source)]
            label = rows or label
            continue
        printed = re.findall(
            r"^([A-Z]\d+) +[\d.]", "".join(o.get("text", "") for o in cell.outputs), re.MULTILINE
        )
        if printed:
            assert list(dict.fromkeys(printed)) == label
            label = ""
    assert not label, f"{label} are not evaluated"


@pytest.mark.parametrize("path", APPENDICES, ids=lambda path: path.stem)
def test_the_readme_lists_an_appendix_with_its_title_and_minutes(path):
    (item,) = [item for item in items(ROOT) if item.path == f"notebooks/{path.name}"]
    (minutes,) = re.findall(r"\b(\d+) minutes to read", cells(path)[0].source)
    row = f"| {item.lesson} | [{title(ROOT, item)}]({item.path}) | {minutes} | | |"
    assert row in (ROOT / "README.md").read_text().splitlines()
