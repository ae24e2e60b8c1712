"""Mistakes in the loss scale's settings, in how its log is read and drawn, in its exercise."""

from tests.mutation import Mutant

READER, SCALE = "course_lib/deepspeed_config/overflow_log.py", "course_lib/zero/precision.py"
TESTS = "tests/deepspeed_config/test_overflow_log.py::test_"
THEIRS = f"{TESTS}our_scale_and_its_lines_are_deepspeed_s_on_drawn_overflows"
VERDICT = f"{TESTS}the_verdict_goes_by_how_the_log_ends"
DRAWN = f"{TESTS}what_was_skipped_and_what_is_left_is_read_from_drawn_logs"
FIGURE, PICTURE = "course_lib/figures/loss_scale.py", "tests/test_figures_schedules.py::test_"
CHECK, CHECKS = "course_lib/classroom/checks/lesson_13/", "tests/test_checks_13_overflow.py::test_"
ANSWERS = "tests/test_checks.py::test_"
WRONG = f"{ANSWERS}a_wrong_answer_is_refused_by_its_name"
RIGHT = f"{ANSWERS}a_right_answer_is_right[read_log-by lines]"

MUTANTS = [
    # ---- the scale
    Mutant(
        "overflow-patience-for-good", SCALE,
        "            if self.consecutive:\n",
        "            if self.consecutive and self.patience > 9:\n",
        (THEIRS,),
        "consecutive_hysteresis changes nothing",
    ),
    Mutant(
        "overflow-never-stops", SCALE,
        "        if self.stops and self.left == 1 and self.value == self.least:\n",
        "        if self.stops and self.left == 1 and self.value < self.least:\n",
        (THEIRS, f"{VERDICT}[all, and it stops]"),
        "a run whose scale is at its least goes on for ever",
    ),
    Mutant(
        "overflow-other-words", READER,
        "{int(max(scale.least, scale.value / 2))}",
        "{int(scale.value / 2)}",
        (THEIRS, f"{VERDICT}[all, down to 16]"),
        "a line says a scale below the least",
    ),
    Mutant(
        "overflow-kept-in-the-engine", "course_lib/zero/engine.py",
        "            except FloatingPointError:\n                self._forget()\n",
        "            except FloatingPointError:\n",
        (f"{TESTS}an_engine_stops_at_its_least_scale_and_can_go_on",),
        "gradients that have overflowed are part of the next step",
    ),
    # ---- the reading
    Mutant(
        "overflow-kept-is-made", READER,
        'SKIPS = ("reduced", "kept", "skipped")',
        'SKIPS = ("reduced", "skipped")',
        (DRAWN, f"{VERDICT}[cut off in the hysteresis]",
         f"{TESTS}a_run_in_float16_is_read_from_its_log"),
        "a step that the hysteresis let pass counts as made",
    ),
    Mutant(
        "overflow-silent-growth", READER,
        "for low, high in told + silent)",
        "for low, high in told)",
        (f"{TESTS}a_run_in_float16_is_read_from_its_log",
         f"{CHECKS}every_drawn_run_is_what_its_log_says"),
        "a doubling that no line tells is not seen",
    ),
    Mutant(
        "overflow-told-growth", READER,
        "for low, high in told + silent)",
        "for low, high in silent)",
        (f"{TESTS}stage_0_s_lines_are_read[fused_optimizer.FP16_Optimizer]",),
        "a doubling that stage 0 tells is not counted",
    ),
    Mutant(
        "overflow-each-rank-again", READER,
        "            fresh = fresh or found[1] not in seen\n",
        "            fresh = True\n",
        (f"{TESTS}stage_0_s_lines_are_read[fused_optimizer.FP16_Optimizer]",
         f"{TESTS}stage_0_s_lines_are_read[unfused_optimizer.FP16_UnfusedOptimizer]"),
        "at stage 0 each rank's line is an overflow of its own",
    ),
    Mutant(
        "overflow-any-rank", READER,
        "            if _rank(line) == lowest[_OVERFLOW]:\n",
        "            if _rank(line) >= lowest[_OVERFLOW]:\n",
        (f"{TESTS}ranks_that_print_together_count_once",),
        "an overflow that two ranks print is two",
    ),
    Mutant(
        "overflow-step-of-any-rank", READER,
        "and _rank(line) == lowest[step]:",
        "and _rank(line) >= lowest[step]:",
        (f"{TESTS}ranks_that_print_together_count_once",
         f"{CHECKS}every_drawn_run_is_what_its_log_says"),
        "another rank's step stands for rank 0's",
    ),
    Mutant(
        "overflow-late-is-lost", READER,
        "(skipping and _at_least(found)):",
        "_at_least(found):",
        (f"{VERDICT}[one at the least]",),
        "a run that goes on at the least scale is given up",
    ),
    Mutant(
        "overflow-one-end", READER,
        "        return DIVERGED if made else NOT_FOUND\n",
        "        return NOT_FOUND\n",
        (f"{VERDICT}[from a step on]", f"{VERDICT}[from a step on, and it stops]"),
        "a run that made steps is said to have found no scale",
    ),
    Mutant(
        "overflow-old-hysteresis-is-the-least", READER,
        "    return least == 1 or bool(into)\n",
        "    return True\n",
        (f"{TESTS}the_lines_of_the_transformers_page_are_read",),
        "the first line of an older release is read as its last",
    ),
    Mutant(
        "overflow-back-too-soon", READER,
        "doublings * window + 1 if doublings",
        "doublings * window if doublings",
        (f"{TESTS}a_scale_comes_back_after_as_many_steps_as_are_said",),
        "the good step that is not counted is counted",
    ),
    Mutant(
        "overflow-nan-is-a-scale", READER,
        "    least = scales[-1].after\n    into",
        "    least = 0\n    into",
        (f"{TESTS}a_run_on_nan_finds_no_scale", f"{VERDICT}[all, and it goes on]"),
        "a row without end is still looking",
    ),
    Mutant(
        "overflow-ledger-counts-elements", "course_lib/ledger/calls.py",
        "    return sum(t.numel() * t.element_size() for t in tensors)",
        "    return sum(t.numel() * 4 for t in tensors)",
        ("tests/deepspeed_config/test_deepspeed_runs.py::"
         "test_the_type_of_the_communication_and_an_overflow",),
        "a reduction in bf16 costs what one in float32 does",
    ),
    # ---- the picture
    Mutant(
        "overflow-figure-no-cross", FIGURE,
        "    if cost:\n",
        "    if len(cost) > 9:\n",
        (f"{PICTURE}a_skipped_step_has_a_cross_and_halves_lie_as_far_apart_as_halves",),
        "a skipped step is not marked",
    ),
    Mutant(
        "overflow-figure-linear", FIGURE,
        '    axis.set_yscale("log", base=2)\n',
        "",
        (f"{PICTURE}a_skipped_step_has_a_cross_and_halves_lie_as_far_apart_as_halves",),
        "below the first halvings nothing is to be seen",
    ),
    Mutant(
        "overflow-figure-words", FIGURE,
        "        at += length\n",
        "        at += 1\n",
        (f"{PICTURE}the_words_of_the_scale_say_which_steps_were_skipped",),
        "the words name other steps",
    ),
    Mutant(
        "overflow-figure-too-few", FIGURE,
        "    if not scales or len(scales) != len(skipped):\n",
        "    if not scales:\n",
        (f"{PICTURE}what_cannot_be_drawn_is_refused",),
        "a step without its scale is drawn",
    ),
    Mutant(
        "overflow-figure-cut", "course_lib/figures/colours.py",
        'layout="constrained")',
        'layout="none")',
        (f"{PICTURE}pictures_are_white_cards_that_cut_nothing_off",),
        "what stands beside the axes may be cut off",
    ),
    # ---- the exercise
    Mutant(
        "overflow-check-no-idea", CHECK + "overflows.py",
        "        if idea.key == key and all(",
        "        if idea.key != key and all(",
        (f"{WRONG}[read_log-reductions alone]", f"{WRONG}[read_log-moved at every step]"),
        "a misreading goes by no name of its own",
    ),
    Mutant(
        "overflow-check-skipped-alone", CHECK + "overflows.py",
        "        for key in KEYS:\n            seen",
        "        for key in KEYS[:1]:\n            seen",
        (f"{WRONG}[read_log-moved at every step]",
         f"{WRONG}[read_log-an overflow late in the run]"),
        "only the steps that were skipped are looked at",
    ),
    Mutant(
        "overflow-check-all-end-well", CHECK + "logs.py",
        "    _never,\n    _never_and_stops,\n    _diverges,\n    _diverges_and_stops,\n", "",
        (f"{CHECKS}no_idea_is_right_and_no_two_are_alike_on_what_is_drawn",
         f"{CHECKS}every_drawn_run_is_what_its_log_says"),
        "no run is drawn that ends at the least scale, and who never says so passes",
    ),
    Mutant(
        "overflow-check-same-logs", CHECK + "logs.py",
        "    r = Random(seed)\n    logs",
        "    r = Random(1)\n    logs",
        (f"{CHECKS}each_check_draws_other_logs",),
        "each check has the same logs, whose numbers can be typed in",
    ),
    Mutant(
        "overflow-check-other-truth", CHECK + "logs.py",
        "        SCALE: skips[-1].after if skips else None,\n",
        "        SCALE: skips[-1].tried if skips else None,\n",
        (RIGHT, f"{CHECKS}every_drawn_run_is_what_its_log_says",
         f"{CHECKS}the_solution_s_function_reads_the_same"),
        "the right answer is the scale that overflowed",
    ),
    Mutant(
        "overflow-check-tells", CHECK + "overflows.py",
        '    head = f"`{key}` is not right in {len(wrong)}',
        '    head = f"`{key}` is {wanted[wrong[0]]} and not right in {len(wrong)}',
        (f"{CHECKS}a_refusal_does_not_say_what_is_right",),
        "a refusal gives the answer",
    ),
    Mutant(
        "overflow-plain-any-re", "course_lib/classroom/grading/plain.py",
        "    pythons_re = _binds_re_alone(tree)\n",
        "    pythons_re = True\n",
        ("tests/grading/test_plain.py::"
         "test_what_is_more_than_plain_code_is_named[a compiler called re]",
         "tests/grading/test_plain.py::"
         "test_what_is_more_than_plain_code_is_named[a compiler as an argument]"),
        "whatever is called re may compile",
    ),
    Mutant(
        "overflow-plain-no-patterns", "course_lib/classroom/grading/plain.py",
        "    pythons_re = _binds_re_alone(tree)\n",
        "    pythons_re = False\n",
        ("tests/grading/test_plain.py::"
         "test_no_answer_that_the_checks_are_tried_on_is_suspected",),
        "who reads a log with a pattern has to wait for a person",
    ),
    Mutant(
        "overflow-check-blank-log", "solutions/13_deepspeed/read_log.ipynb",
        '"[rank 0] step 1 | loss 2.5547\\n"',
        '"[rank 0] step 1 | loss 9.5547\\n"',
        (f"{CHECKS}the_question_prints_the_log_that_is_drawn_for_it",),
        "the question prints a log of another run",
    ),
    Mutant(
        "overflow-check-names", CHECK + "log_ideas.py",
        'SCALE, *SAYS.of("the scale that was tried"),',
        'SCALE, *SAYS.of("the hysteresis taken for a scale"),',
        (f"{CHECKS}a_misreading_has_a_name_of_its_own",),
        "two misreadings go by one name",
    ),
]  # fmt: skip
