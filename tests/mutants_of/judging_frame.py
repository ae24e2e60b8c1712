"""Mistakes in what the frame does for every exercise: what is carried, what was left out, and what
any answer may have done to its numbers."""

from __future__ import annotations

from tests.mutation import Mutant

ROOM, CHECKS = "course_lib/classroom/", "course_lib/classroom/checks/"
CARRIED = "tests/classroom/test_carried.py::test_"
LEFT_OUT, GENERAL = "tests/classroom/test_left_out.py::test_", "tests/test_general.py::test_"

MUTANTS = [
    Mutant(
        "judging-the-world-s-numbers-unnamed",
        "course_lib/classroom/checks/frame.py",
        "            if smaller and finding.name not in _OF_THE_GROUP:\n",
        "            if not finding.text:\n",
        (
            "tests/test_checks.py::test_a_wrong_answer_is_refused_by_its_name"
            "[take_stock-the notebook's rank 0 writes]",
        ),
        "a rank of the notebook in the place of one of the group goes by what comes of it",
    ),
    Mutant(
        "carried-functions-alone",
        ROOM + "carried.py",
        "        more = {\n            i: node\n            for i, node in enumerate(body)\n",
        "        more = {\n            i: node\n            for i, node in enumerate(body[:0])\n",
        (f"{CARRIED}what_an_answer_needs_goes_with_it[a namedtuple]",),
        "a value that the answer reads stays behind",
    ),
    Mutant(
        "carried-older-over-newer",
        ROOM + "carried.py",
        "if sources.get(one, source) != source}",
        "if False}",
        (f"{CARRIED}what_an_answer_needs_goes_with_it[what a later cell has bound anew]",),
        "what a later cell has bound anew is carried as it was before",
    ),
    Mutant(
        "carried-made-of-nothing",
        ROOM + "carried.py",
        "needed |= wanted_by(texts[source]) | _made_of(source, needed)",
        "needed |= wanted_by(texts[source])",
        (f"{CARRIED}what_an_answer_needs_goes_with_it[a class with its state]",),
        "a value goes without the class that it is made of",
    ),
    Mutant(
        "carried-first-definition-counts",
        ROOM + "carried.py",
        "    return binding[-1] if binding else None",
        "    return binding[0] if binding else None",
        (f"{CARRIED}what_an_answer_needs_goes_with_it[defined twice]",),
        "an answer under a blank of its name counts as a blank",
    ),
    Mutant(
        "left-out-wait-passes",
        CHECKS + "left_out.py",
        "        if calls:\n",
        "        if False:\n",
        (
            f"{LEFT_OUT}an_asynchronous_call_without_its_wait_is_told_even_where_the_sum_is_right[pass]",
        ),
        "a collective that is never waited for passes where it happened to be complete",
    ),
    Mutant(
        "left-out-one-wait-only",
        CHECKS + "left_out.py",
        'r"get_future|is_completed|',
        'r"',
        (f"{LEFT_OUT}every_way_to_wait_is_one[work.get_future().wait()]",),
        "who waits for the future is told to wait",
    ),
    Mutant(
        "left-out-by-anybody",
        CHECKS + "left_out.py",
        "left <= set(empty)",
        "left",
        (f"{LEFT_OUT}a_rank_that_holds_something_is_not_called_empty[empty1]",),
        "a rank that holds something is called empty",
    ),
    Mutant(
        "general-rounding-unseen",
        CHECKS + "looking.py",
        "        misses.kinds += kinds",
        "        pass",
        (f"{GENERAL}values_that_went_through_a_narrower_type[kind0]",),
        "a float32 detour is told as wrong values",
    ),
    Mutant(
        "general-rounding-beside-what-is-off",
        CHECKS + "looking.py",
        "misses.off = misses.off or not kinds",
        "pass",
        (f"{GENERAL}rounding_is_not_all_where_another_value_is_off",),
        "wrong values are called rounded because others beside them were",
    ),
    Mutant(
        "general-rounding-everywhere",
        CHECKS + "general.py",
        "_SINGLE, _HALF = 2e-6, 2e-2",
        "_SINGLE, _HALF = 2e-2, 2e-2",
        (f"{GENERAL}other_wrong_values_were_not_rounded[seen0]",),
        "a wrong value that is near is called rounded",
    ),
    Mutant(
        "general-sizes-that-coincide",
        CHECKS + "general.py",
        "if list(sizes.values()).count(sizes[name]) == 1]",
        "]",
        (f"{GENERAL}a_mean_for_a_sum_is_told_by_what_it_was_taken_over",),
        "a mean over the batch is called one over the ranks where the two are as many",
    ),
    Mutant(
        "general-an-epsilon-is-rounding",
        CHECKS + "general.py",
        "    if _lopsided(",
        "    if not _lopsided(",
        (f"{GENERAL}a_small_number_in_a_denominator_is_no_rounding",),
        "an epsilon in a denominator is told to have gone through float32",
    ),
    Mutant(
        "general-one-rank-unseen",
        CHECKS + "general.py",
        "    if n > 1 and len(fine) == 1 and same:",
        "    if n > 1 and len(fine) == 1:",
        (f"{GENERAL}a_result_on_one_rank_only_is_told",),
        "ranks that each want something else are told of a reduce to one",
    ),
]
