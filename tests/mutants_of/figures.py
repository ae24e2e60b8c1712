"""Mistakes in what several lessons' pictures share: the palettes, the pictures of claims."""

from __future__ import annotations

from tests.mutation import Mutant

PALETTE = "tests/test_figures_palette.py::test_"

MUTANTS = [
    Mutant(
        "figures-method-in-a-ranks-colour",
        "course_lib/figures/loss_curve.py",
        "color=method(i)",
        "color=of_rank(i)",
        (f"{PALETTE}the_colours_of_ranks_are_used_for_ranks_alone[loss_curve]",),
        "a curve in the blue of rank 0 reads as rank 0's",
    ),
    Mutant(
        "figures-accent-like-a-rank",
        "course_lib/figures/colours.py",
        '"#B5174B"',
        '"#CC3B00"',
        (f"{PALETTE}methods_share_no_colour_and_no_hatch_with_ranks",),
        "an accent that is nearly the vermilion of rank 5",
    ),
    Mutant(
        "figures-methods-alike-in-grey",
        "course_lib/figures/colours.py",
        '"#888B8F"',
        '"#60666B"',
        (f"{PALETTE}methods_are_told_apart_without_any_colour",),
        "printed in grey, the accent and the middle grey are one",
    ),
]
