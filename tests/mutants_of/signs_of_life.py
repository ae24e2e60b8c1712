"""Mistakes in what a learner sees while something runs, and after a slip."""

from tests.mutation import Mutant

ROOM = "course_lib/classroom/"
DESK = "tests/classroom/test_desk.py::"
HANGS = "tests/classroom/test_hangs.py::"
MAGIC = "tests/classroom/test_magic.py::"
CARD = "tests/classroom/test_card.py::"

MUTANTS = [
    Mutant(
        "life-prints-come-at-the-end",
        ROOM + "output.py",
        "[*newest(outcomes), line, *doing, _PAGE]",
        "[line, *doing, _PAGE]",
        (f"{MAGIC}test_what_ranks_print_is_seen_while_they_run_and_once_afterwards",),
        "a training loop shows no loss while it runs",
    ),
    Mutant(
        "life-live-area-stays",
        ROOM + "output.py",
        "            clear_output()\n",
        "            pass\n",
        (f"{MAGIC}test_what_ranks_print_is_seen_while_they_run_and_once_afterwards",),
        "a notebook keeps what was only to be seen while it ran",
    ),
    Mutant(
        "life-what-was-said-before-is-lost",
        ROOM + "magic.py",
        "        if live.clear() and self._said:\n",
        "        if live.clear() and False:\n",
        (f"{MAGIC}test_another_world_starts_anew_and_says_so",),
        "a learner is not told that the variables are new",
    ),
    Mutant(
        "life-bars-line-by-line",
        ROOM + "output.py",
        '.removesuffix("\\n").split("\\n")',
        ".splitlines()",
        (f"{MAGIC}test_a_live_area_shows_the_newest_lines_of_each_rank",),
        "a progress bar is a hundred lines",
    ),
    Mutant(
        "life-late-threads-call",
        ROOM + "seat.py",
        "        threads.refuse_late()\n",
        "",
        (f"{HANGS}test_a_thread_that_outlives_its_cell_harms_no_later_one",),
        "a thread takes the numbers of a later cell's sum",
    ),
    Mutant(
        "life-threads-left-waiting",
        ROOM + "seat.py",
        "bool(self.threads.waiting())",
        "False",
        (f"{HANGS}test_a_thread_that_outlives_its_cell_harms_no_later_one",),
        "the next cell is ended after 21 s for an earlier one's thread",
    ),
    Mutant(
        "life-loops-beside-each-other",
        ROOM + "own_time.py",
        "self.at_work > self.work",
        "self.at_work > self.limit",
        (
            "tests/classroom/test_own_time.py::"
            "test_loops_side_by_side_are_ended_by_what_each_has_worked",
        ),
        "a loop without end keeps a check silent for a minute",
    ),
    Mutant(
        "life-loop-variables-are-named",
        ROOM + "seat.py",
        "if name not in self._loops]",
        "]",
        (f"{HANGS}test_what_holds_a_dead_group_is_named_and_says_so_when_used",),
        "a reader is told to make a loop's variable again",
    ),
    Mutant(
        "life-a-stale-cell-is-the-last",
        ROOM + "definitions.py",
        "        self.older = set(self.sources) - set(names)\n",
        "",
        (f"{DESK}test_a_cell_that_could_not_be_read_is_not_taken_for_the_last_one",),
        "a check speaks of a cell that its learner has left behind",
    ),
    Mutant(
        "life-forgotten-magic",
        ROOM + "definitions.py",
        "            self.elsewhere |= set(defined_names(cell))\n",
        "            pass\n",
        (f"{DESK}test_an_answer_in_the_notebook_s_own_process_is_called_that",),
        "who has forgotten %%ranks is told to run the cell that was just run",
    ),
    Mutant(
        "life-run-all-takes-a-hint",
        ROOM + "checks/desk.py",
        "        self.checked_at = time.monotonic()\n",
        "",
        (f"{DESK}test_running_all_cells_takes_no_hint",),
        "Run All shows a hint that nobody has asked for, and notes it down",
    ),
    Mutant(
        "life-restarted-names",
        ROOM + "unloaded.py",
        "        shell.set_custom_exc((NameError,), _unknown_name)\n",
        "",
        (
            "tests/classroom/test_restarted.py::"
            "test_a_name_that_an_earlier_cell_makes_is_answered_alike",
        ),
        "after a restart a name is called not defined, and not which cell to run",
    ),
    Mutant(
        "life-no-hint-below-the-check",
        ROOM + "release.py",
        "        AddHint,\n",
        "",
        ("tests/test_release.py::test_the_committed_exercises_are_what_the_solutions_give",),
        "the aid that is used most has to be typed",
    ),
    Mutant(
        "life-a-card-without-onward",
        ROOM + "checks/frame.py",
        "        if self.outcome == RIGHT:\n",
        "        if False:\n",
        (f"{CARD}test_a_right_answer_leads_to_the_next_exercise_and_to_its_lesson",),
        "after a right answer the tab has to be closed to go on",
    ),
    Mutant(
        "life-colour-of-letters",
        ROOM + "checks/card.py",
        'f"background-color: {_GROUNDS[outcome]}; "',
        'f"color: {_GROUNDS[outcome]}; "',
        (f"{CARD}test_letters_keep_the_colour_of_the_theme",),
        "a verdict cannot be read in a dark theme",
    ),
]
