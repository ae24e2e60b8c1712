"""Mistakes in the checks of lesson 00, and in the picture that it draws."""

from tests.mutation import Mutant

CHECKS = "course_lib/classroom/checks/lesson_00/__init__.py"
TESTS = "tests/test_checks_00.py::"
ANSWERS = "tests/test_checks.py::test_a_wrong_answer_is_refused_by_its_name"

WRITTEN = "tests/test_thought.py::test_what_to_write_instead_is_said_where_it_can_be_told"

MUTANTS = [
    Mutant(
        "lesson-00-one-idea-alone",
        CHECKS,
        "known, apart=True)",
        "known)",
        (f"{ANSWERS}[who_knows-several at once]", f"{TESTS}test_several_ideas_are_told_one_by_one"),
        "several ideas at once go by no name",
    ),
    Mutant(
        "lesson-00-elements-unnamed",
        CHECKS,
        "total / total.numel()",
        "total / total.numel() / 2",
        (f"{ANSWERS}[mean_over_ranks-divided by the elements]",),
        "the mean over the elements goes by no name",
    ),
    Mutant(
        "lesson-00-words-not-read",
        "course_lib/classroom/checks/thought.py",
        "    if isinstance(given, str):",
        "    if isinstance(given, bytes):",
        (f"{WRITTEN}[rank 2-without quotes: write 2.]",),
        "a rank in words is told about units",
    ),
    Mutant(
        "lesson-00-input-not-compared",
        CHECKS,
        'if report["changed"]:',
        "if False:",
        (f"{ANSWERS}[mean_over_ranks-in place]",),
        "an answer that destroys the caller's tensor passes",
        "T1",
    ),
    Mutant(
        "lesson-00-only-three-ranks",
        CHECKS,
        '        (TWO, [4, 5 + 2 * (seed % 2)], "float32"),\n',
        "",
        (
            f"{ANSWERS}[mean_over_ranks-the notebook's world]",
            f"{ANSWERS}[mean_over_ranks-a third of it]",
        ),
        "the world's size passes for the group's",
        "T29",
    ),
    Mutant(
        "lesson-00-traffic-not-held",
        CHECKS,
        "if sent > allowed:",
        "if False:",
        (f"{ANSWERS}[mean_over_ranks-everybody's x]",),
        "gathering everybody's tensor passes for an all-reduce",
    ),
    Mutant(
        "lesson-00-notebook-counted-as-rank",
        CHECKS,
        '"c": 0, "d": RANKS',
        '"c": 1, "d": RANKS',
        (f"{TESTS}test_the_reference_is_accepted",),
        "the notebook's own process is taken for a rank",
    ),
    Mutant(
        "lesson-00-truth-is-a-number",
        "course_lib/classroom/checks/thought.py",
        " and not isinstance(value, bool)\n    if not real",
        "\n    if not real",
        (f"{ANSWERS}[who_knows-yes and no]",),
        "True counts as the number one",
    ),
    Mutant(
        "lesson-00-blank-is-wrong",
        "course_lib/classroom/checks/thought.py",
        " or given[f] is ... or given[f] is None]",
        "]",
        (f"{TESTS}test_a_blank_is_not_attempted",),
        "a dictionary that was not filled in counts as wrong",
    ),
    Mutant(
        "lesson-00-map-forgets-shared-devices",
        "course_lib/figures/ranks_map.py",
        "if d == place)} on {place}",
        "if d == place or len(places) > 1)} on {place}",
        ("tests/test_figures.py::test_a_map_says_who_computes_where",),
        "the words of the map put a rank on a device that is not its own",
    ),
]
