"""Mistakes in the checks of lesson 04's exercises: what passes that should not, or unnamed."""

from tests.mutation import Mutant

FOURTH = "course_lib/classroom/checks/lesson_04/"
WRONG = "tests/test_checks.py::test_a_wrong_answer_is_refused_by_its_name"
NUMBERS = "tests/test_checks_04_numbers.py::"

MUTANTS = [
    Mutant(
        "l04-fuse-a-view-passes",
        FOURTH + "fuse.py",
        'lambda r: r["beside"] and r["shape"][0] > 2,',
        'lambda r: r["beside"] < 0,',
        (f"{WRONG}[fuse_gate_up-a view of the whole]",),
        "a rank that keeps the whole weight in memory passes",
        "T23",
    ),
    Mutant(
        "l04-fuse-messages-pass",
        FOURTH + "fuse.py",
        'lambda r: r["ops"],',
        'lambda r: "send" in r["ops"],',
        (f"{WRONG}[fuse_gate_up-sent round]",),
        "weights that were sent round pass",
    ),
    Mutant(
        "l04-fuse-order-of-rows",
        FOURTH + "fuse.py",
        'all(report["rows"] == report["wanted"] for',
        'all(sorted(report["rows"] or []) == report["wanted"] for',
        (f"{WRONG}[fuse_gate_up-row by row]", f"{WRONG}[fuse_gate_up-up first]"),
        "the right rows in another order go by no name",
    ),
    Mutant(
        "l04-fuse-sizes-that-divide",
        FOURTH + "fuse.py",
        "(THREE, uneven), (TWO, odd), (THREE, few)]",
        "(THREE, even), (TWO, even), (THREE, even)]",
        (
            f"{WRONG}[fuse_gate_up-the remainder dropped]",
            f"{WRONG}[fuse_gate_up-the remainder to the last]",
        ),
        "degenerate inputs: every size divides by the ranks",
        "T29",
    ),
    Mutant(
        "l04-fuse-two-are-the-first-two",
        FOURTH + "fuse.py",
        "(TWO, even), (THREE, uneven), (TWO, odd)",
        "([0, 1], even), (THREE, uneven), ([0, 1], odd)",
        (f"{WRONG}[fuse_gate_up-the notebook's rank]",),
        "the notebook's rank passes for that of the group",
    ),
    Mutant(
        "l04-fuse-biases-not-tried",
        FOURTH + "fuse.py",
        "    for k in (0, 3, 4):",
        "    for k in ():",
        (f"{WRONG}[fuse_gate_up-good for two dims alone]", f"{WRONG}[fuse_gate_up-biases whole]"),
        "a function that fails for biases passes",
    ),
    Mutant(
        "l04-fuse-not-trained",
        FOURTH + "fuse.py",
        'not r["far"] <= TOLERANCE',
        'not r["far"] <= 1e9',
        (f"{WRONG}[fuse_gate_up-another weight at the next call]",),
        "training with the fused weight is not held against the dense layer",
        "T28",
    ),
    Mutant(
        "l04-gelu-zero-unnamed",
        FOURTH + "gelu.py",
        '"zero": a == 0 or b == 0,',
        '"zero": a == 7 or b == 7,',
        (f"{WRONG}[gelu_counterexample-zero]",),
        "a pair with a zero in it is not told why the sides are equal",
    ),
    Mutant(
        "l04-gelu-any-size",
        FOURTH + "gelu.py",
        '        "not whole": a != round(a) or b != round(b),\n'
        '        "not the smallest": size > SMALLEST,\n',
        "",
        (f"{WRONG}[gelu_counterexample-larger]", f"{WRONG}[gelu_counterexample-halves]"),
        "any counterexample passes for the smallest",
    ),
    Mutant(
        "l04-gelu-relu-forgotten",
        FOURTH + "gelu.py",
        '"same sign": low == high,',
        '"same sign": a + b == 1234,',
        (f"{WRONG}[gelu_counterexample-both positive]",),
        "a pair that is none for ReLU is not told so",
    ),
    Mutant(
        "l04-pays-one-all-reduce",
        FOURTH + "pays.py",
        "all_reduces: float = 2",
        "all_reduces: float = 1",
        (f"{NUMBERS}test_the_numbers_of_the_solution_are_right[tp_pays]",),
        "the check is wrong and the learner is right",
    ),
    Mutant(
        "l04-pays-limit-for-exact",
        FOURTH + "pays.py",
        "sent: float = forms.all_reduce(N, 1)",
        "sent: float = 2 * forms.send(1)",
        (
            f"{NUMBERS}test_the_numbers_of_the_solution_are_right[tp_pays]",
            f"{WRONG}[tp_pays-the article's count]",
        ),
        "the limit for many ranks passes for what eight send",
    ),
    Mutant(
        "l04-pays-hint-gives-a-number",
        FOURTH + "tp_pays.md",
        "with one positive root.",
        "with one positive root, 2215 on InfiniBand.",
        (f"{NUMBERS}test_no_hint_and_no_verdict_holds_a_right_number[tp_pays]",),
        "a hint gives the answer away",
    ),
    Mutant(
        "l04-fuse-its-own-memory-is-too-much",
        FOURTH + "fuse.py",
        'lambda r: r["beside"] and r["shape"][0] > 2,',
        'lambda r: r["beside"] >= 0,',
        (
            "tests/test_checks.py::test_a_right_answer_is_right[fuse_gate_up-slices]",
            "tests/test_checks_04.py::test_the_reference_answer_is_right[fuse_gate_up]",
        ),
        "a part that keeps no more than itself is refused",
    ),
    Mutant(
        "l04-gelu-one-order-alone",
        FOURTH + "gelu.py",
        '"not whole": a != round(a) or b != round(b),',
        '"not whole": a != round(a) or b != round(b) or a < b,',
        ("tests/test_checks.py::test_a_right_answer_is_right[gelu_counterexample-other order]",),
        "a right pair is refused for its order",
    ),
    Mutant(
        "l04-pays-two-ideas-one-name",
        FOURTH + "pays.py",
        '"one α for all": [{"alphas": 1}],',
        '"one α for all #2": [{"alphas": 1}],',
        (f"{WRONG}[tp_pays-one alpha]",),
        "two ideas go by one name",
    ),
    Mutant(
        "l04-pays-fields-of-its-own",
        FOURTH + "pays.py",
        'found = {"one rank": ',
        'found = {"a rank": ',
        (f"{NUMBERS}test_the_numbers_of_the_exercise_are_blank[tp_pays]",),
        "the check asks for other numbers than the notebook",
    ),
    Mutant(
        "l04-exercises-in-another-order",
        FOURTH + "__init__.py",
        "EXERCISES = (GELU, FUSE_GATE_UP,",
        "EXERCISES = (FUSE_GATE_UP, GELU,",
        (
            "tests/test_exercises.py::test_the_lesson_lists_its_exercises_with_points_and_minutes[04]",
        ),
        "the lesson's list is another than the check's",
    ),
]
