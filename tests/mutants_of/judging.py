"""Mistakes in how an answer is tried, and in the order in which its trials are looked at."""

from tests.mutation import Mutant

CHECKS = "course_lib/classroom/checks/"
JUDGE = "tests/classroom/test_judge.py::"
LOOKING = "tests/test_looking.py::"

MUTANTS = [
    Mutant(
        "judging-cleared-twice",
        CHECKS + "lesson_11/same_way.py",
        "    judge.take(answer, __name__)",
        "    judge.ready()\n    judge.take(answer, __name__)",
        (f"{JUDGE}test_an_answer_meets_ranks_that_were_cleared_once",),
        "every check clears the ranks twice, and sums twice to see whether they work",
    ),
    Mutant(
        "judging-loaded-in-the-answer-s-time",
        CHECKS + "lesson_07/looks.py",
        "    judge.take(answer, trial.__name__)",
        "    judge.take(answer)",
        (f"{JUDGE}test_what_tries_an_answer_is_loaded_before_the_answer_comes",),
        "the first trial pays for an import, and an answer may have bent what it imports",
    ),
    Mutant(
        "judging-outside-said-for-each",
        CHECKS + "judge.py",
        "    if text.endswith(at):",
        "    if not text:",
        ("tests/test_checks_06.py::test_a_disagreement_in_the_backward_is_placed_there_once",),
        "a disagreement in the backward is placed in a line that is not the answer's",
    ),
    Mutant(
        "judging-plumbing-is-read",
        CHECKS + "judge.py",
        '    text = fact.text.replace(f"line 1: {_CALL}", outside)',
        "    text = fact.text",
        (f"{JUDGE}test_an_error_speaks_of_the_answer_and_of_no_plumbing",),
        "a learner reads a line of the judge's own as if it stood in the cell",
    ),
    Mutant(
        "judging-any-function",
        CHECKS + "judge.py",
        " or vars(sys.modules[module]).get(name) is not function:",
        ":",
        (f"{JUDGE}test_ranks_find_a_function_only_at_the_top_of_a_module_of_the_checks",),
        "a trial that the ranks cannot find fails there, as if the answer had",
    ),
    Mutant(
        "judging-cold",
        CHECKS + "bench.py",
        'getattr(importlib.import_module(name), "warm", lambda: None)()',
        "importlib.import_module(name)",
        (f"{JUDGE}test_a_module_is_warmed_when_it_is_loaded",),
        "the first trial pays for what torch loads at a first backward",
    ),
    Mutant(
        "judging-one-group-for-all",
        CHECKS + "bench.py",
        'made = namespace["__trial__"] = group(plan["members"])',
        'made = namespace["__trial__"] = dist.group.WORLD',
        (f"{JUDGE}test_a_trial_is_a_function_with_data_and_its_reports_are_data",),
        "an answer that takes the whole world for its group passes",
    ),
    Mutant(
        "looking-costs-before-gradients",
        CHECKS + "looking.py",
        "        for look in (self.gradients, self.traffic, self.memory, self.later_steps):",
        "        for look in (self.traffic, self.gradients, self.memory, self.later_steps):",
        (f"{LOOKING}test_there_is_one_order_and_costs_come_after_what_is_right",),
        "a wrong gradient is told that it costs too much",
    ),
    Mutant(
        "looking-a-look-left-out",
        CHECKS + "looking.py",
        "                for look in (self.returned, self.shape, self.unchanged, self.value):",
        "                for look in (self.returned, self.shape, self.value):",
        (f"{LOOKING}test_the_first_look_that_finds_something_speaks[unchanged]",),
        "inputs may be written over in every lesson",
    ),
    Mutant(
        "looking-all-trials-first",
        CHECKS + "looking.py",
        "        for trial in trials:\n            try:",
        "        for trial in list(trials):\n            try:",
        (f"{LOOKING}test_an_answer_that_gives_a_wrong_value_is_tried_no_more",),
        "an answer that hangs in the last trial is not told what is wrong in the first",
    ),
    Mutant(
        "looking-world-numbers-unheard",
        CHECKS + "looking.py",
        " and any(len(t.reports) == WORLD for t in right):",
        " and not right:",
        (f"{LOOKING}test_what_is_right_in_the_whole_world_alone_may_read_the_world_s_numbers",),
        "an answer that reads the notebook's rank goes by another name",
    ),
    Mutant(
        "looking-an-idea-of-one-rank",
        CHECKS + "looking.py",
        "    return len(seen) == len(others) and all(map(alike, seen, others))",
        "    return any(map(alike, seen, others))",
        (f"{LOOKING}test_an_idea_is_known_by_what_it_gives_on_every_rank",),
        "an answer is told an idea that it has not got",
    ),
    Mutant(
        "looking-rounded-away",
        CHECKS + "looking.py",
        "TOLERANCE, ITEM = 1e-10, 8",
        "TOLERANCE, ITEM = 1e-7, 8",
        (f"{LOOKING}test_near_is_equal_to_rounding",),
        "float32 on the way passes for float64",
    ),
]
