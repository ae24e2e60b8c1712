"""Mistakes in the checks of lesson 15: what passes that should not, or goes by no name."""

from tests.mutation import Mutant

HERE = "course_lib/classroom/checks/lesson_15/"
FRAME = "course_lib/classroom/checks/by_cases.py"
CHECKS = "tests/test_checks_15.py::"
WRONG = f"{CHECKS}test_a_wrong_answer_is_refused_by_its_name"
COUNTS = f"{CHECKS}test_two_other_functions_count_the_same"
NUMBERS = "tests/test_checks_15_numbers.py::"

MUTANTS = [
    # ---- the frame
    Mutant(
        "l15-ideas-not-told-apart",
        FRAME,
        "            if self._tell_apart(cases):\n",
        "            if cases:\n",
        (f"{CHECKS}test_cases_that_do_not_tell_a_wrong_idea_from_the_right_one_are_not_drawn",),
        "cases are drawn on which a wrong idea is right",
        "T29",
    ),
    Mutant(
        "l15-idea-dropped",
        FRAME,
        "        if idea.key == key and explains(",
        "        if idea.key != key and explains(",
        (f"{WRONG}[mfu_of_log-a mean]", f"{WRONG}[cheapest_plan-the fastest]"),
        "no wrong idea is recognised",
    ),
    Mutant(
        "l15-first-case-alone",
        FRAME,
        "    wrong = [k for k in range(len(seen)) if not",
        "    wrong = [k for k in range(1) if not",
        (f"{WRONG}[mfu_of_log-the same]",),
        "an answer that is right in the first case passes",
    ),
    Mutant(
        "l15-case-written-to",
        FRAME,
        '        if seen["changed"]:\n',
        '        if seen["changed"] is None:\n',
        (f"{WRONG}[place_ranks-written to]",),
        "an answer may change what it was given",
    ),
    Mutant(
        "l15-none-is-anything",
        FRAME,
        "    return type(seen) is type(wanted) and seen == wanted\n",
        "    return wanted is None or seen == wanted\n",
        (f"{WRONG}[cheapest_plan-never none]",),
        "where nothing fits in time, any plan is right",
    ),
    # ---- place_ranks
    Mutant(
        "l15-any-placement",
        HERE + "place.py",
        "    if not dear:\n",
        "    if dear is not None:\n",
        (f"{WRONG}[place_ranks-tp inside]", f"{WRONG}[place_ranks-the dearest]"),
        "every placement of the mesh is cheap enough",
    ),
    Mutant(
        "l15-rings-inside-leave",
        HERE + "place.py",
        "        if len(touched) > 1:\n",
        "        if touched:\n",
        (f"{COUNTS}[place_ranks]",),
        "a ring inside a node is charged to its links",
    ),
    Mutant(
        "l15-tp-always-heavy",
        HERE + "place.py",
        'if more.endswith("tp") else {"tp": small, "dp": large}',
        'if more else {"tp": small, "dp": large}',
        (f"{WRONG}[place_ranks-tp inside]",),
        "no drawn mesh has few tokens: who always lays tp inside passes",
    ),
    Mutant(
        "l15-coordinates-twice",
        HERE + "place.py",
        "    if got == wanted:\n",
        "    if got <= wanted:\n",
        (f"{WRONG}[place_ranks-twice]",),
        "two ranks may have one place",
    ),
    # ---- mfu_of_log
    Mutant(
        "l15-recomputed-in-every-log",
        HERE + "mfu.py",
        '"recompute": k % 2,',
        '"recompute": 1,',
        (f"{COUNTS}[mfu_of_log]",),
        "no run without recomputation: whose HFU always counts it passes",
    ),
    Mutant(
        "l15-head-recomputed",
        HERE + "mfu.py",
        "    return flops(case, rows, head=False, times=1) if",
        "    return flops(case, rows, times=1) if",
        (f"{COUNTS}[mfu_of_log]",),
        "the count itself is wrong",
    ),
    # ---- cheapest_plan
    Mutant(
        "l15-time-without-end",
        HERE + "cheapest.py",
        "    factor = 0.9 if k == 0 else ",
        "    factor = 1.2 if k == 0 else ",
        (f"{CHECKS}test_the_model_that_nobody_can_train_in_time_is_among_the_cases",),
        "a plan is always in time",
    ),
    Mutant(
        "l15-stage-3-sends-as-the-others",
        HERE + "cheapest_ways.py",
        "(moves if stage == 3 else 2) * 2 * params",
        "2 * 2 * params",
        (f"{COUNTS}[cheapest_plan]",),
        "the count itself is wrong",
    ),
    # ---- changes_sides
    Mutant(
        "l15-weights-not-cut",
        HERE + "sides.py",
        "h * h / (tp if self.cut else 1)",
        "h * h / (1 if self.cut else tp)",
        (f"{NUMBERS}test_the_numbers_of_the_closed_forms_are_right",),
        "a rank is taken to sum the whole block's gradients over dp",
    ),
    Mutant(
        "l15-followers-are-right-ones",
        HERE + "sides.py",
        "close(given[name], off * right[name])",
        "close(given[name], right[name])",
        (f"{NUMBERS}test_what_follows_from_a_wrong_border_is_not_held_against_it_again",),
        "what follows from a wrong border is held against the learner once more",
    ),
    Mutant(
        "l15-one-idea-for-all-is-cut-up",
        HERE + "sides.py",
        "if not follow or any(_is_of(mistake, given, wrong) for mistake in known):",
        "if not follow:",
        (f"{NUMBERS}test_the_missing_factor_of_dp_is_named_in_all_that_it_spoils",),
        "an idea that explains every border is told of one of them",
    ),
    Mutant(
        "l15-idea-on-its-own-dropped",
        HERE + "sides.py",
        "    return (*made, *_ALONE)\n",
        "    return (*made,)\n",
        (f"{NUMBERS}test_a_misreading_is_named[3h]",),
        "3h for every mesh goes by no name",
    ),
    Mutant(
        "l15-one-axis-inside",
        HERE + "place.py",
        """    (8, 16, "both, tp"),
    (8, 16, "both, dp"),
""",
        "",
        (f"{WRONG}[place_ranks-one axis inside]",),
        "one axis inside a node is always best, and no rectangle is looked for",
    ),
]
