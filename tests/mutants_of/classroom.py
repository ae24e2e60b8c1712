"""Mistakes in course_lib/classroom/."""

from tests.mutation import Mutant

ROOM = "course_lib/classroom/"
CLUSTER = "tests/classroom/test_cluster.py::"
HANGS = "tests/classroom/test_hangs.py::"
BOARD = "tests/classroom/test_board.py::"
SAVING = "tests/classroom/test_saving.py::"
DISAGREE = f"{HANGS}test_ranks_that_disagree_are_told_at_once_and_keep_their_group"

MUTANTS = [
    Mutant(
        "classroom-max-passes-as-sum",
        ROOM + "calls.py",
        'words = op + (f"({reduction})" if reduction else',
        'words = op + ("(sum)" if reduction else',
        (f"{DISAGREE}[sum-against-max]",),
        "a sum that meets a maximum is wrong without a word",
        "T35",
    ),
    Mutant(
        "classroom-a-late-call-lost",
        ROOM + "inbox.py",
        "                if at > newest:",
        "                if at < 0:",
        (
            "tests/classroom/test_inbox.py::"
            "test_a_call_that_is_posted_while_the_list_is_read_is_found_the_next_time",
        ),
        "a call posted while the board is read is skipped, and its rank waited for until the end",
        "T35",
    ),
    Mutant(
        "classroom-handles-not-watched",
        ROOM + "seat.py",
        "with listening(referee), referee:",
        "with referee:",
        (f"{HANGS}test_ranks_that_wait_for_each_other_are_freed_before_the_deadline",),
        "two ranks that both receive wait inside gloo, where nobody can free them",
        "T30",
    ),
    Mutant(
        "classroom-dead-groups-usable",
        ROOM + "seat.py",
        "isinstance(group, dist.ProcessGroup) and group.group_name in dead",
        "False",
        (f"{HANGS}test_what_holds_a_dead_group_is_named_and_says_so_when_used",),
        "a group from before a failure is used after it",
        "T35",
    ),
    Mutant(
        "classroom-ranks-outlive-the-notebook",
        ROOM + "rank.py",
        "    while os.getppid() == parent:",
        "    while True:",
        (f"{CLUSTER}test_no_rank_survives_the_sigkill_of_its_notebook",),
        "ranks stay behind when the notebook is killed",
        "T35",
    ),
    Mutant(
        "classroom-consequence-first",
        ROOM + "hangs.py",
        '_ORDER = ["died", "raised", "stuck", "interrupted", "transport", "waited", "unanswered", "ok"]',  # noqa: E501
        '_ORDER = ["waited", "died", "raised", "stuck", "interrupted", "transport", "unanswered", "ok"]',  # noqa: E501
        (f"{CLUSTER}test_an_error_on_one_rank_keeps_all_variables",),
        "the rank that waited hides the one that failed",
        "T35",
    ),
    Mutant(
        "classroom-lines-off-by-the-magic",
        ROOM + "magic.py",
        "first_line=2,",
        "first_line=1,",
        ("tests/classroom/test_magic.py::test_lines_are_counted_as_the_editor_counts_them",),
        "the report points at the line above",
    ),
    Mutant(
        "classroom-half-a-write-is-read",
        ROOM + "board.py",
        "            if _check(number, text) == check:",
        "            if True:",
        (f"{BOARD}test_half_a_write_is_not_read",),
        "a status is read while it is being written",
    ),
    Mutant(
        "classroom-saved-in-place",
        "course_lib/files.py",
        "        with os.fdopen(handle, mode, **options) as file:",
        "        with open(path, mode, **options) as file:",
        (f"{SAVING}test_a_failure_at_any_point_keeps_the_old_file",),
        "a full disk takes the saved notebook along",
    ),
    Mutant(
        "classroom-groups-never-renewed",
        ROOM + "hangs.py",
        '        return even and not any(fact.kind == "transport" for fact in self.facts)',
        "        return True",
        (f"{HANGS}test_what_holds_a_dead_group_is_named_and_says_so_when_used",),
        "a group on which a call is still owed stays in use",
        "T35",
    ),
    Mutant(
        "classroom-deadlock-of-all-unseen",
        ROOM + "hangs.py",
        "        if before != self._waiting:",
        "        if True:",
        (f"{HANGS}test_two_groups_in_another_order",),
        "ranks that wait for each other use up the whole deadline",
        "T30",
    ),
    Mutant(
        "classroom-restart-forgets-the-world",
        ROOM + "magic.py",
        "            world = world or self.cluster.world\n",
        "",
        ("tests/classroom/test_magic.py::test_a_restart_says_what_there_is_and_keeps_the_number",),
        "a learner who works with one rank gets two after a restart",
    ),
    Mutant(
        "classroom-rank-without-its-gpu-goes-on",
        ROOM + "cluster.py",
        "            lost = True\n",
        "",
        (f"{CLUSTER}test_a_rank_that_lost_its_gpu_is_explained_and_replaced",),
        "after a device-side assert every later cell fails with its words, at another line",
    ),
    Mutant(
        "classroom-every-cuda-error-costs-the-ranks",
        ROOM + "lost_gpu.py",
        '    return found.group(1).strip() if found else ""',
        '    return text if "CUDA error" in text else ""',
        (f"{CLUSTER}test_a_cuda_error_that_costs_one_call_costs_no_rank",),
        "a tensor too large for the GPU costs the learner all variables",
    ),
]
