"""Colours of ranks are for ranks alone; what is compared and is no rank has its own palette."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest

from course_lib.figures import colours
from tests.test_figures import _seen

FIGURES = Path(colours.__file__).parent
# Those whose shapes are ranks, or what a rank holds or does. A new one is put here by hand.
DRAWS_RANKS = {
    "blocks", "colours", "f_and_g", "flat_cut", "head_map", "logical", "mesh_rows",
    "parameter_life", "pipeline_steps", "ranks_map", "statement", "statement_rows",
    "states", "timeline", "who_holds", "wirings", "word_rows",
}  # fmt: skip
OF_RANKS = {"RANKS", "HATCHES", "of_rank", "hatch_of_rank"}
MODULES = sorted(path.stem for path in FIGURES.glob("*.py"))


def lightness(colour: str) -> float:
    red, green, blue = ((int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5))
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) ** (1 / 2.2)


@pytest.mark.parametrize("module", MODULES)
def test_the_colours_of_ranks_are_used_for_ranks_alone(module):
    tree = ast.parse((FIGURES / f"{module}.py").read_text())
    used = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom)
            else [node.id] if isinstance(node, ast.Name)
            else [node.attr] if isinstance(node, ast.Attribute)
            else []
        )
    }  # fmt: skip
    if module not in DRAWS_RANKS:
        assert not used & OF_RANKS, f"{module} draws no rank, and uses the ranks' colours"


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"colours"}))
def test_no_colour_of_a_rank_is_typed_in(module):
    text = (FIGURES / f"{module}.py").read_text()
    typed = {colour.upper() for colour in re.findall(r"#[0-9a-fA-F]{6}", text)}
    assert not typed & {colour.upper() for colour in colours.RANKS}


def test_methods_share_no_colour_and_no_hatch_with_ranks():
    for a, b in itertools.product(colours.METHODS, colours.RANKS):
        pair = zip(_seen(a, "none"), _seen(b, "none"), strict=True)
        assert sum((x - y) ** 2 for x, y in pair) ** 0.5 > 0.25
    shared = set(colours.METHOD_HATCHES) & set(colours.HATCHES)
    assert shared <= {""}
    letters = {letter for hatch in colours.HATCHES for letter in hatch}
    assert not letters & {letter for hatch in colours.METHOD_HATCHES for letter in hatch}


def test_methods_are_told_apart_without_any_colour():
    light = sorted(map(lightness, colours.METHODS))
    assert all(b - a > 0.05 for a, b in itertools.pairwise(light))
    first = sorted(map(lightness, colours.METHODS[:4]))
    assert all(b - a > 0.15 for a, b in itertools.pairwise(first))
    assert [colours.line_of_method(i) for i in range(3)] == list(colours.METHODS[:3])
    assert all(lightness(colours.line_of_method(i)) < 0.6 for i in range(8))  # seen as a line
    looks = [
        (colours.method(i), colours.marker_of_method(i), colours.dashes_of_method(i))
        for i in range(10)
    ]
    assert len(set(looks)) == 10
    assert len({mark for _, mark, _ in looks[:6]}) == 6
    assert colours.hatch_of_method(1) == colours.hatch_of_method(6) != colours.hatch_of_method(2)
