"""Mistakes in the picture of lesson 04: what would be drawn, or said in words, that was not so."""

from tests.mutation import Mutant

DRAWN = "tests/test_figures_wirings.py::"

MUTANTS = [
    Mutant(
        "l04-wirings-handed-over-for-sent",
        "course_lib/figures/wirings.py",
        "sum(call.must * call.elements / call.payload for",
        "sum(call.elements for",
        (f"{DRAWN}test_a_run_s_own_records_are_drawn_with_the_elements_that_a_rank_sends",),
        "the picture shows what was handed over, not what is sent",
    ),
    Mutant(
        "l04-wirings-ways-exchanged",
        "course_lib/figures/wirings.py",
        '("forward", part.forward), ("backward", part.backward)',
        '("forward", part.backward), ("backward", part.forward)',
        (f"{DRAWN}test_parts_without_a_collective_and_a_single_one_are_said",),
        "the words call the backward's collectives the forward's",
    ),
    Mutant(
        "l04-wirings-cuts-exchanged",
        "course_lib/figures/wirings.py",
        'if part.cut == "columns" else (0.0, rank * step)',
        'if part.cut == "rows" else (0.0, rank * step)',
        (f"{DRAWN}test_each_rank_has_a_stripe_of_a_weight_in_its_colour",),
        "a weight that is cut by columns is drawn cut by rows",
    ),
    Mutant(
        "l04-wirings-a-barrier-divides-by-nothing",
        "course_lib/figures/wirings.py",
        " for call in calls if call.payload)",
        " for call in calls)",
        (f"{DRAWN}test_elements_are_counted_whatever_their_size_and_may_be_a_fraction",),
        "a collective without a payload cannot be drawn",
    ),
    Mutant(
        "l04-wirings-any-cut",
        "course_lib/figures/wirings.py",
        '_CUTS = ("", "columns", "rows")',
        '_CUTS = ("", "columns", "rows", "diagonals")',
        (f"{DRAWN}test_what_cannot_be_drawn_is_refused",),
        "a cut that there is not is drawn as another",
    ),
    Mutant(
        "l04-wirings-too-wide",
        "course_lib/figures/wirings.py",
        "WIDE, NARROW, HIGH, GAP = 1.5,",
        "WIDE, NARROW, HIGH, GAP = 3.5,",
        (f"{DRAWN}test_the_picture_is_small_a_white_card_and_cuts_nothing_off",),
        "the picture is wider than a page",
    ),
]
