"""Mistakes in the checks of lesson 13: what passes that should not, or goes by no name."""

from tests.mutation import Mutant

HERE = "course_lib/classroom/checks/lesson_13/"
CHECKS = "tests/test_checks_13.py::"
ANSWERS = "tests/test_checks.py::"
WRONG = f"{ANSWERS}test_a_wrong_answer_is_refused_by_its_name"
RIGHT = f"{ANSWERS}test_a_right_answer_is_right"
THEIRS = "tests/test_checks_13_deepspeed.py::"
NUMBERS = "tests/test_checks_13_numbers.py::"
NAMED = f"{NUMBERS}test_a_misreading_is_refused_by_its_name"

MUTANTS = [
    Mutant(
        "l13-any-mend-passes",
        HERE + "mend.py",
        "    remedy.look(case, mended)\n",
        "",
        (f"{WRONG}[mend_config-deletes what is unknown]",),
        "a mend that silences the message and loses what was meant passes",
    ),
    Mutant(
        "l13-the-printed-ones-alone",
        HERE + "mend.py",
        "FRESH = 3 ",
        "FRESH = 0 ",
        (f"{WRONG}[mend_config-the printed numbers]",),
        "numbers that were typed in for the printed configs pass",
    ),
    Mutant(
        "l13-typed-in-has-no-name",
        HERE + "mend.py",
        "    return all(a == b for a, b in worked_out)",
        "    return all(a != b for a, b in worked_out)",
        (f"{WRONG}[mend_config-the printed numbers]",),
        "who types a number in hears that a formula is wrong",
    ),
    Mutant(
        "l13-anything-else-may-change",
        HERE + "mend.py",
        "    if beside:\n",
        "    if len(beside) > 1:\n",
        (f"{WRONG}[mend_config-something else too]",),
        "a mend that changes another key passes",
    ),
    Mutant(
        "l13-new-faults-pass",
        HERE + "mend.py",
        "    if left:\n",
        "    if len(left) > 9:\n",
        (f"{WRONG}[mend_config-off by a misspelt key]",),
        "a mend that puts another fault in the place of the old one passes",
    ),
    Mutant(
        "l13-any-batch",
        HERE + "remedies.py",
        "    if comes_to[TRAIN] != meant[TRAIN]:\n",
        "    if comes_to[TRAIN] < 1:\n",
        (f"{WRONG}[mend_config-another batch]",),
        "a mend that trains another batch passes",
    ),
    Mutant(
        "l13-a-block-that-is-off-is-on",
        HERE + "remedies.py",
        'at(mended, name, "enabled") is True for',
        "at(mended, name) is not None for",
        (f"{RIGHT}[mend_config-in place]",),
        "who switches fp16 off instead of taking it out is refused",
    ),
    Mutant(
        "l13-buckets-without-overlap",
        HERE + "remedies.py",
        "BYTES, TIMES = 2, 4.5",
        "BYTES, TIMES = 2, 1.0",
        (f"{RIGHT}[mend_config-in place]", f"{WRONG}[mend_config-no overlap counted]"),
        "buckets are counted once where the overlap takes them 4.5 times",
    ),
    Mutant(
        "l13-the-trainer-s-formula",
        HERE + "remedies.py",
        "(h * h, int(0.9 * h * h), 10 * h)",
        "(h * h, int(0.9 * h * h), 100 * h)",
        (f"{RIGHT}[mend_config-in place]",),
        "the reference of what the Trainer resolves is wrong",
    ),
    # ---- the batch triple
    Mutant(
        "l13-nothing-is-left-over",
        HERE + "triple.py",
        "<= 0 or train != micro * times * world",
        "<= 0",
        (f"{RIGHT}[fill_batch-filled, then checked]", f"{THEIRS}test_the_triple_is_deepspeed_s"),
        "the reference fills in what does not multiply",
    ),
    Mutant(
        "l13-one-rank",
        HERE + "triple.py",
        "        return micro * times * world, micro, times",
        "        return micro * times, micro, times",
        (f"{RIGHT}[fill_batch-filled, then checked]",),
        "the reference forgets the world size",
    ),
    Mutant(
        "l13-only-right-triples",
        HERE + "batch.py",
        "            some += [right, {**right, odd: more}, {**right, odd: wrong}]",
        "            some += [right]",
        (f"{WRONG}[fill_batch-three are believed]",),
        "no product is drawn that is not the batch, so that who believes all three passes",
    ),
    Mutant(
        "l13-no-idea-of-a-triple",
        HERE + "batch.py",
        "        if idea:\n",
        "        if not idea:\n",
        (f"{WRONG}[fill_batch-one rank]",),
        "a wrong triple goes by no name",
    ),
    Mutant(
        "l13-a-triple-in-place",
        HERE + "batch.py",
        '            if seen["changed"]:\n',
        '            if seen["lost"]:\n',
        (f"{WRONG}[fill_batch-in place]",),
        "an answer that writes into the caller's config passes",
    ),
    # ---- FSDP2
    Mutant(
        "l13-nothing-is-run",
        HERE + "fsdp.py",
        "    value=_look_at_run,\n",
        "",
        (f"{WRONG}[in_fsdp2-always frees]", f"{WRONG}[in_fsdp2-never frees]"),
        "arguments that keep what should be freed pass",
        "T23",
    ),
    Mutant(
        "l13-the-reference-for-both",
        HERE + "fsdp_trial.py",
        '            report["measured"] = _run(mesh, keywords, runs)',
        '            report["measured"] = _run(mesh, reference, runs)',
        (f"{WRONG}[in_fsdp2-always frees]", f"{WRONG}[in_fsdp2-one type for all]"),
        "what is measured is not the answer's model",
    ),
    Mutant(
        "l13-held-is-whole",
        HERE + "fsdp_trial.py",
        '    own = parameter.to_local() if hasattr(parameter, "to_local") else parameter',
        "    own = parameter",
        (f"{CHECKS}test_what_is_held_is_a_shard_where_it_is_freed",),
        "a shard is counted as the whole parameter",
    ),
    Mutant(
        "l13-files-are-memory",
        HERE + "words.py",
        '    if "nvme" in devices.values():',
        '    if "nvme" == devices.values():',
        (f"{RIGHT}[in_fsdp2-always all]", f"{WRONG}[in_fsdp2-files are memory]"),
        "the reference takes files for the host's memory",
    ),
    Mutant(
        "l13-names-may-be-left-out",
        HERE + "fsdp.py",
        "        if missing:\n",
        "        if missing == names:\n",
        (f"{WRONG}[in_fsdp2-nothing is lost]",),
        "a translation that loses half of the config in silence passes",
    ),
    # ---- numbers
    Mutant(
        "l13-clipping-is-off",
        HERE + "clinic.py",
        "CLIPPING, REDUCE = 1.0, 5e8",
        "CLIPPING, REDUCE = 0.5, 5e8",
        (
            f"{NUMBERS}test_the_right_numbers_are_right_and_those_of_the_solution_too",
            f"{THEIRS}test_the_question_s_config_comes_to_what_its_numbers_say",
        ),
        "DeepSpeed's default of clipping is wrong",
    ),
    Mutant(
        "l13-no-name-for-one-gpu",
        HERE + "clinic.py",
        "{BATCH: MICRO * TIMES}),",
        "{BATCH: MICRO * TIMES + 5}),",
        (f"{NAMED}[batch-32-one GPU's batch]",),
        "who forgets a GPU hears nothing of it",
    ),
    Mutant(
        "l13-a-hint-says-it",
        HERE + "read_config.md",
        "The documentation's example has other buckets and 9 GB.",
        "It is 4.5 times.",
        (f"{NUMBERS}test_no_hint_and_no_verdict_holds_a_right_number",),
        "a hint gives the answer",
    ),
    # ---- where the exercises are met
    Mutant(
        "l13-the-readme-has-other-minutes",
        "solutions/13_deepspeed/mend_config.ipynb",
        "**4 points · 25 minutes**",
        "**4 points · 35 minutes**",
        (
            "tests/test_exercises.py::test_the_readme_tells_which_exercises_are_ahead_of_their_lesson",
        ),
        "the README's minutes for exercises ahead of their lesson are not theirs",
    ),
    Mutant(
        "l13-fsdp2-is-suspect",
        "course_lib/classroom/grading/plain.py",
        '    "fsdp",\n',
        "",
        ("tests/grading/test_plain.py::test_no_reference_answer_is_suspected",),
        "an honest answer that imports FSDP2 is run by nobody",
    ),
    Mutant(
        "l13-an-exercise-that-is-not-listed",
        "course_lib/classroom/workspace/catalogue.py",
        'for name, points in _ROW.findall(path.read_text(encoding="utf-8"))',
        'for name, points in _ROW.findall(path.read_text(encoding="utf-8"))[1:]',
        (
            "tests/classroom/test_status.py::"
            "test_a_lesson_is_listed_with_its_exercises_as_the_checks_have_them",
        ),
        "`course status` does not know of an exercise",
    ),
    Mutant(
        "l13-no-fewer-samples-than-ranks",
        HERE + "batch.py",
        "            some += [few, {**few, TIMES: times}]\n",
        "",
        (f"{WRONG}[fill_batch-a share of 0]",),
        "a micro-batch of 0 passes, as no drawn batch is smaller than the ranks",
    ),
]
