"""Mistakes in the checks and the picture of lesson 12: what passes that should not, or unnamed."""

from tests.mutation import Mutant

HERE = "course_lib/classroom/checks/lesson_12/"
PICTURE = "course_lib/figures/crossings.py"
CHECKS = "tests/test_checks_12.py::"
WRONG = "tests/test_checks.py::test_a_wrong_answer_is_refused_by_its_name"
RIGHT = "tests/test_checks.py::test_a_right_answer_is_right"
NUMBERS = "tests/test_checks_12_numbers.py::"
NAMED = f"{NUMBERS}test_a_misreading_is_named"
LIKELY = f"{NUMBERS}test_what_is_likely_in_one_field_is_named"
SURE = f"{NUMBERS}test_the_right_numbers_are_right"
FIGURES = "tests/test_figures_crossings.py::"

MUTANTS = [
    Mutant(
        "l12-any-choice-passes",
        HERE + "pick.py",
        "            if chosen != right[k]:",
        "            if chosen is None and right[k] is not None:",
        (f"{WRONG}[pick_stage-never cut]", f"{WRONG}[pick_stage-no host]"),
        "what runs and does not shard passes",
        "T23",
    ),
    Mutant(
        "l12-roomy-machines",
        HERE + "pick_machines.py",
        "    rooms[rank] = room\n",
        "",
        (f"{WRONG}[pick_stage-never cut]",),
        "every rank has room for everything",
    ),
    Mutant(
        "l12-ranks-may-disagree",
        HERE + "pick.py",
        '"the ranks disagree": len(set(each)) > 1}',
        '"the ranks disagree": len(set(each)) > 3}',
        (f"{WRONG}[pick_stage-nobody asked]",),
        "ranks that chose two stages pass, or wait for each other",
        "T30",
    ),
    Mutant(
        "l12-blanks-attempted",
        "course_lib/classroom/checks/words.py",
        '"name": self.path.stem,',
        '"name": self.path.stem.replace("_", " a ", 1),',
        (f"{CHECKS}test_a_blank_is_not_attempted", f"{RIGHT}[pick_stage-rooms around]"),
        "the check looks for another function",
    ),
    Mutant(
        "l12-no-budget",
        HERE + "ladder_walk.py",
        "        if most > self.limit:",
        "        if most < 0:",
        (f"{WRONG}[walk_ladder-not back up]", f"{WRONG}[walk_ladder-not caught]"),
        "every rung fits",
    ),
    Mutant(
        "l12-bottom-passes",
        HERE + "ladder.py",
        'over, other = needs is not None and needs > one["limit"], got != right',
        'over, other = needs is not None and needs > one["limit"], False',
        (f"{WRONG}[walk_ladder-to the bottom]",),
        "whoever goes to the bottom at once passes",
    ),
    Mutant(
        "l12-batch-may-change",
        HERE + "ladder.py",
        '        if batch_of(settings) != one["rows"]:',
        "        if not settings:",
        (f"{WRONG}[walk_ladder-another batch]",),
        "a smaller batch passes for a remedy",
    ),
    Mutant(
        "l12-no-idea-of-persist",
        HERE + "pick_machines.py",
        'if k != "persist"} for one',
        'if k != "nothing"} for one',
        (f"{WRONG}[pick_stage-two keys of a setting]",),
        "who leaves out a key of a setting is told that nothing fits",
    ),
    # ---- numbers
    Mutant(
        "l12-sixteen-and-two",
        HERE + "eighteen.py",
        "    update: float = 16",
        "    update: float = 14",
        (SURE,),
        "the gradient of an update has two bytes",
    ),
    Mutant(
        "l12-a-backward-is-a-forward",
        HERE + "hides.py",
        "    backward: float = 4",
        "    backward: float = 2",
        (SURE,),
        "a backward makes one product for each of the forward's",
    ),
    Mutant(
        "l12-no-name-for-one-after-the-other",
        HERE + "hides.py",
        '{"both_ways": 2},',
        '{"both_ways": 3},',
        (f"{NAMED}[hides-one after the other]",),
        "who adds reading and writing hears nothing of it",
    ),
    Mutant(
        "l12-eighteen-only-called-wrong",
        HERE + "eighteen.py",
        "MISTAKES = (*counted(SAYS, RIGHT, IDEAS), *named(SAYS, ALONE))",
        "MISTAKES = counted(SAYS, RIGHT, IDEAS)",
        (
            f"{LIKELY}[eighteen-GPU, both away]",
            f"{LIKELY}[eighteen-node, nothing away, sharded while built]",
        ),
        "a likely mistake is only called wrong",
    ),
    Mutant(
        "l12-hides-only-called-wrong",
        HERE + "hides.py",
        "*named(SAYS, ALONE))",
        "*named(SAYS, ALONE[:1]))",
        (f"{LIKELY}[hides-micro-batches]", f"{LIKELY}[hides-window]"),
        "a likely mistake is only called wrong",
    ),
    Mutant(
        "l12-an-idea-that-is-right",
        HERE + "hides.py",
        '{"sets": 2},',
        '{"sets": 3.001},',
        (f"{NUMBERS}test_every_idea_is_tried_and_none_is_the_right_number",),
        "a right number is called a mistake",
    ),
    Mutant(
        "l12-the-reference-is-wrong",
        "solutions/12_offload/eighteen.ipynb",
        "4 * P * gpus * 1.5 / GB",
        "4 * P * gpus / GB",
        (f"{NUMBERS}test_the_reference_is_right_and_a_blank_is_not_attempted",),
        "the solution leaves out the reserve",
    ),
    Mutant(
        "l12-a-hint-says-it",
        HERE + "eighteen.md",
        "Which of them go away with the optimizer?",
        "They are 18.",
        (f"{NUMBERS}test_the_exercise_holds_no_answer",),
        "a hint gives the answer",
    ),
    # ---- the picture
    Mutant(
        "l12-all-copies-cross",
        PICTURE,
        '                if {there, here} == {"device", "host"}:',
        '                if {there, here} <= {"device", "host"}:',
        (f"{FIGURES}test_every_crossing_is_noted_with_its_phase",),
        "a copy within a tier is counted",
    ),
    Mutant(
        "l12-a-collectives-copies-cross",
        PICTURE,
        "aten.copy_.default and not copies_a_result():",
        "aten.copy_.default:",
        (f"{FIGURES}test_what_a_collective_copies_for_its_own_sake_crosses_nothing",),
        "where ranks share a GPU, gloo's way through the host is taken for offload",
    ),
    Mutant(
        "l12-picture-without-a-phase",
        PICTURE,
        '        told.append(f"{phase.capitalize()}: ',
        '        told.append(f"',
        (f"{FIGURES}test_every_phase_is_told_with_its_bytes",),
        "the words do not say when",
    ),
    Mutant(
        "l12-bars-alike",
        PICTURE,
        "[nbytes for _, nbytes in own], width=1.0",
        "[most for _ in own], width=1.0",
        (f"{FIGURES}test_a_bar_is_as_high_as_its_bytes",),
        "all bars are as high as the highest",
    ),
    Mutant(
        "l12-colours-of-where-bytes-go",
        PICTURE,
        'FROM = {"down": "device", "up": "host", "read": "disk", "written": "host"}',
        'FROM = {"down": "host", "up": "device", "read": "host", "written": "disk"}',
        (f"{FIGURES}test_a_bar_has_the_colour_that_its_tier_has_among_stacked_bars",),
        "a colour is one tier in a picture and another in the next",
    ),
    Mutant(
        "l12-nothing-drawn",
        PICTURE,
        "    if not noted:",
        "    if noted is None:",
        (f"{FIGURES}test_what_cannot_be_drawn_is_refused",),
        "an engine without offload gets an empty picture",
    ),
    # ---- the picture of tiers; copies beside products
    Mutant(
        "l12-arrows-between-any-tiers",
        "course_lib/figures/tiers.py",
        "if abs(names.index(arrow.source) - names.index(arrow.target)) != 1:",
        "if arrow.source == arrow.target:",
        ("tests/test_figures_tiers.py::test_an_arrow_joins_two_neighbours",),
        "an arrow over a tier is drawn as nothing",
    ),
    Mutant(
        "l12-arrows-one-way",
        "course_lib/figures/tiers.py",
        "            if arrow.source != names[i]:",
        "            if arrow.source not in names:",
        ("tests/test_figures_tiers.py::test_an_arrow_points_the_way_it_says",),
        "what goes up is drawn going down",
    ),
    Mutant(
        "l12-copy-does-not-wait",
        "course_lib/zero/offload/copies.py",
        "    copying.wait_stream(computing)  # what was asked",
        "    pass  # what was asked",
        (
            "tests/zero_offload/test_copies.py::test_the_copy_is_asked_for_first_and_waits_and_is_waited_for",
        ),
        "a copy overwrites what an earlier product still reads",
    ),
    Mutant(
        "l12-copy-is-not-waited-for",
        "course_lib/zero/offload/copies.py",
        "    computing.wait_stream(copying)  # from here",
        "    pass  # from here",
        (
            "tests/zero_offload/test_copies.py::test_the_copy_is_asked_for_first_and_waits_and_is_waited_for",
        ),
        "what is read next may still be under way",
    ),
    Mutant(
        "l12-copy-memory-not-recorded",
        "course_lib/zero/offload/copies.py",
        "    there.record_stream(copying)  # its",
        "    pass  # its",
        (
            "tests/zero_offload/test_copies.py::test_the_copy_is_asked_for_first_and_waits_and_is_waited_for",
        ),
        "the allocator gives the memory away while the copy writes it",
    ),
    Mutant(
        "l12-hidden-of-the-longer",
        "course_lib/zero/offload/copies.py",
        "saved / min(self.copy, self.products)",
        "saved / max(self.copy, self.products)",
        ("tests/zero_offload/test_copies.py::test_how_much_is_hidden",),
        "a copy that is wholly hidden is called hidden in part",
    ),
    Mutant(
        "l12-measured-without-a-gpu",
        "course_lib/zero/offload/copies.py",
        '    if device.type != "cuda":',
        '    if device.type == "meta":',
        ("tests/zero_offload/test_copies.py::test_without_a_gpu_nothing_is_measured",),
        "a machine without a GPU claims a time",
    ),
]
