"""Mistakes in the checks of lesson 01's exercises: what passes that should not, or unnamed."""

from tests.mutation import Mutant

CHECKS = "course_lib/classroom/checks/"
FIRST = CHECKS + "lesson_01/"
JUDGED = "tests/test_checks_01.py::test_a_plausible_mistake_is_refused_by_its_name"
UNEVEN = "tests/test_checks_01_more.py::test_a_plausible_mistake_is_refused_by_its_name"
NUMBERS = "tests/test_checks_01_numbers.py::"
BOOKS = "tests/test_exercises.py::"

MUTANTS = [
    Mutant(
        "uneven-bytes-not-held",
        FIRST + "pieces.py",
        "sent[rank] > may_send[rank] or messages",
        "messages",
        (
            f"{UNEVEN}[padded to the longest]",
            f"{UNEVEN}[straight to everybody]",
            f"{UNEVEN}[all through rank 0]",
            f"{UNEVEN}[all lengths in each message]",
        ),
        "an answer that sends fillers, or one piece again and again, passes",
    ),
    Mutant(
        "uneven-messages-not-held",
        FIRST + "pieces.py",
        "sent[rank] > may_send[rank] or messages[rank] > 2 * (n - 1)",
        "sent[rank] > may_send[rank]",
        (f"{UNEVEN}[each piece in two halves]",),
        "twice as many messages pass",
    ),
    Mutant(
        "uneven-lengths-all-one",
        FIRST + "uneven.py",
        "apart = chance.sample([few, some, many], 3)",
        "apart, few, some = [many] * 3, many, many",
        (
            f"{UNEVEN}[everybody's is as long as mine]",
            f"{UNEVEN}[the length of another]",
        ),
        "degenerate inputs: all pieces have one length",
        "T29",
    ),
    Mutant(
        "uneven-no-piece-empty",
        FIRST + "uneven.py",
        "[(three, [some, 0, few]), (two, [0, many])]",
        "[(three, [some, many, few]), (two, [few, many])]",
        (f"{UNEVEN}[an empty one is not sent]",),
        "no piece is ever empty",
        "T29",
    ),
    Mutant(
        "uneven-two-are-the-first-two",
        FIRST + "uneven.py",
        "three, two = [0, 1, 2], [1, 2]",
        "three, two = [0, 1, 2], [0, 1]",
        (f"{UNEVEN}[the notebook's own rank]",),
        "ranks of the world pass for ranks of the group where the two agree",
        "T29",
    ),
    Mutant(
        "uneven-order-not-compared",
        FIRST + "pieces.py",
        "        return rank, entry\n",
        "",
        (f"{UNEVEN}[in the order of arrival]", f"{UNEVEN}[one buffer for all]"),
        "a list of the right lengths is right, whatever is in it",
    ),
    Mutant(
        "uneven-views-not-seen",
        CHECKS + "bench.py",
        '"one_buffer": len(set(starts)) < len(starts),',
        '"one_buffer": False,',
        (f"{UNEVEN}[one buffer for all]",),
        "the likeliest mistake goes by no name",
    ),
    Mutant(
        "uneven-ready-made-passes",
        FIRST + "rules.py",
        'POINT_TO_POINT = {"send", "recv", "barrier"}',
        'POINT_TO_POINT = {"send", "recv", "barrier", "all_gather", "all_reduce"}',
        (f"{UNEVEN}[torch's own, with objects]", f"{JUDGED}[torch's own]"),
        "torch's own collective passes for an answer",
    ),
    Mutant(
        "hangs-another-culprit",
        FIRST + "hangs.py",
        '"C": Case(0, 2, {1: _LOUDEST, 2: _LOUDEST}),',
        '"C": Case(1, 2, {0: _LOUDEST, 2: _LOUDEST}),',
        (
            f"{NUMBERS}test_the_numbers_of_the_solution_are_right[who_hangs]",
            f"{NUMBERS}test_a_misreading_is_refused_by_its_name[who_hangs-time out]",
        ),
        "the rank that gave up waiting passes for the one that failed",
    ),
    Mutant(
        "hangs-line-shown-is-another",
        "course_lib/classroom/cluster.py",
        "if first_line > 1 and not",
        "if first_line > 2 and not",
        ("tests/test_checks_01_more.py::test_three_real_ranks_stand_where_the_notebook_says",),
        "the stacks in the exercise are not those of the ranks",
    ),
    Mutant(
        "hangs-counted-from-one-unnamed",
        FIRST + "hangs.py",
        "given[name] == case.culprit + 1 for",
        "given[name] == case.culprit + 9 for",
        (f"{NUMBERS}test_a_misreading_is_refused_by_its_name[who_hangs-from one]",),
        "numbering from 1 is taken for a rank that does not exist",
    ),
    Mutant(
        "hangs-rest-not-said",
        FIRST + "hangs.py",
        "for case in CASES if case not in wrong]",
        "for case in CASES if case in wrong]",
        (f"{NUMBERS}test_all_that_is_right_so_far_is_said",),
        "the wrong case is called right",
    ),
    Mutant(
        "hangs-verdict-names-the-culprit",
        FIRST + "hangs.py",
        'f"Case {wrong[0]}, rank {given[wrong[0]]:g}: {text}{rest}"',
        'f"Case {wrong[0]}: it is {CASES[wrong[0]].culprit}. {text}{rest}"',
        (f"{NUMBERS}test_no_hint_and_no_verdict_names_the_rank_that_is_right",),
        "the verdict gives the answer away",
    ),
    Mutant(
        "trees-ring-sends-whole-tensors",
        FIRST + "trees.py",
        "RING = Cost(2 * (RANKS - 1), 2 * (RANKS - 1) / RANKS)",
        "RING = Cost(2 * (RANKS - 1), 2 * (RANKS - 1))",
        (f"{NUMBERS}test_the_numbers_of_the_solution_are_right[tree_or_ring]",),
        "the check is wrong and the learner is right",
    ),
    Mutant(
        "bytes-of-one-round",
        FIRST + "bytes_sent.py",
        "compare(given, {n: forms.all_reduce(n, PAYLOAD)",
        "compare(given, {n: forms.reduce_scatter(PAYLOAD, PAYLOAD // n)",
        (
            f"{NUMBERS}test_the_numbers_of_the_solution_are_right[ring_bytes]",
            f"{NUMBERS}test_a_misreading_is_refused_by_its_name[ring_bytes-one round]",
        ),
        "half of an all-reduce passes for the whole",
    ),
    Mutant(
        "bytes-hint-gives-a-number",
        FIRST + "bytes_sent.py",
        '"That is B.",',
        '"That is B; at n = 8 it comes to 4,200,000.",',
        (f"{NUMBERS}test_no_hint_and_no_verdict_holds_a_right_number[ring_bytes]",),
        "a hint gives the answer away",
    ),
    Mutant(
        "exercises-points-of-their-own",
        FIRST + "trees.py",
        "    points=3,",
        "    points=4,",
        (
            f"{BOOKS}test_a_notebook_is_an_exercise_of_its_lesson_and_says_what_the_frame_says"
            "[tree_or_ring]",
        ),
        "the notebook promises other points than the check gives",
    ),
    Mutant(
        "exercises-without-a-notebook",
        FIRST + "__init__.py",
        "EXERCISES = (RING_BYTES, ",
        "EXERCISES = (RING, RING_BYTES, ",
        (f"{BOOKS}test_the_lesson_lists_its_exercises_with_points_and_minutes",),
        "the lesson's list is another than the check's",
    ),
]
