"""Mistakes about a run's folder: its lock, sums, record and curve, and what a killed run leaves."""

from tests.mutation import Mutant

HOME = "course_lib/train/"
FOLDER = "tests/train/test_folder.py::"
DAMAGE = "tests/train/test_damage.py::"
NAMED = FOLDER + "test_a_folder_has_one_holder_who_is_named"
EARLY = FOLDER + "test_a_signal_before_there_is_a_group_says_that_nothing_was_trained[15]"
WITHOUT = FOLDER + "test_where_a_meeting_needs_a_name_its_ranks_take_it_away"
RECORD = DAMAGE + "test_a_record_that_says_something_else"
LINE = DAMAGE + "test_a_damaged_line_of_the_curve_is_named"
CURVE = DAMAGE + "test_a_curve_that_is_not_the_checkpoint_s"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str) -> Mutant:
    return Mutant(f"folder-{name}", f"{HOME}{file}.py", old, new, tests, why)


MUTANTS = [
    mutant(
        "lock", "shared",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        (NAMED, FOLDER + "test_all_ranks_hear_who_holds_the_folder"),
        "two runs hold one folder",
    ),
    mutant(
        "lock", "by-the-file-alone",
        "file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)",
        "file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)",
        (FOLDER + "test_a_killed_holder_stands_in_nobody_s_way",),
        "what a killed run leaves stands in the way of the next",
    ),
    mutant(
        "lock", "of-a-file-that-is-gone",
        "                if _is_at(file, self.path):\n",
        "                if file:\n",
        (FOLDER + "test_a_file_that_another_run_has_just_taken_away_is_no_lock",),
        "two runs hold a lock each, on two files of one name",
    ),
    mutant(
        "lock", "rank-0-alone",
        "        if refusal:\n            raise Refused(refusal)\n",
        "        if refusal and me.rank == 0:\n            raise Refused(refusal)\n",
        (FOLDER + "test_all_ranks_hear_who_holds_the_folder",),
        "rank 0 refuses, and the others go on and wait for it",
    ),
    mutant(
        "lock", "folders-left",
        "                folder.rmdir()\n",
        "                folder.stat()\n",
        (NAMED,),
        "a run that was refused leaves an empty folder",
    ),
    mutant(
        "lock", "one-folder-a-second",
        '            path = Path(stem if number == 1 else f"{stem}-{number}")\n',
        "            path = Path(stem)\n            if path.exists():\n"
        "                return path\n",
        (FOLDER + "test_two_runs_of_one_second_have_two_folders",),
        "two runs that begin at once share a folder",
    ),
    mutant(
        "program", "not-held",
        "    with locked_folder(options, me) as out, Journal",
        "    out = Path(options.out)\n    out.mkdir(parents=True, exist_ok=True)\n    with Journal",
        (FOLDER + "test_a_second_run_is_refused_and_the_first_goes_on",),
        "two runs write into one folder",
    ),
    mutant(
        "record", "any-kind",
        "    if not of_kind(value, kind):\n",
        "    if value is None and kind is dict:\n",
        (f"{RECORD}[a word for a step]", f"{RECORD}[a mesh in a list]",
         f"{RECORD}[options in a list]"),
        "a list is asked for its keys, and the answer is a traceback",
    ),
    mutant(
        "record", "any-step",
        '    if record["step"] != number_of(path):\n',
        "    if not path:\n",
        (f"{RECORD}[another step]",),
        "the steps of a run are counted wrong from there",
    ),
    mutant(
        "record", "sum-of-the-record",
        "    sums.check(path, [RECORD], lambda: remedy(path))\n",
        "",
        (f"{RECORD}[another value]",),
        "a learning rate that nobody typed is trained with",
    ),
    mutant(
        "curve", "any-line",
        "        if all(map(math.isfinite, (point.loss, point.lr, validation or 0.0))):\n",
        "        if point:\n",
        (LINE,),
        "an infinity is a loss",
    ),
    mutant(
        "curve", "any-order",
        "        if len(points) > 1 and points[-1].step != points[-2].step + 1:\n",
        "        if len(points) > 1 and points[-1].step < points[-2].step:\n",
        (LINE,),
        "a step that is missing is not missed",
    ),
    mutant(
        "curve", "lines-lost",
        "        if kept and kept[-1].step != after:\n",
        "        if kept and kept[-1].step > after:\n",
        (CURVE,),
        "a curve has a hole where its last lines were",
    ),
    mutant(
        "curve", "not-the-checkpoint-s",
        "        if kept and digest not in (None, self.digest()):\n",
        "        if kept and digest == kept:\n",
        (CURVE,),
        "a loss that nobody has measured is in the curve",
    ),
    mutant(
        "journal", "finished-unsaid",
        "        if self.done >= options.steps:\n",
        "        if self.done > options.steps:\n",
        (DAMAGE + "test_a_finished_run_says_that_it_is_and_how_to_go_on",),
        "a run that is finished is said to go on",
    ),
    mutant(
        "launch", "early-as-ever",
        "self.early = self.early or not (forwarded or self._all_ready() or self.ended)",
        "self.early = False",
        (EARLY,),
        "who has not begun is told to go on from a checkpoint",
    ),
    mutant(
        "launch", "checkpoint-out-of-hand",
        "    except Refused:\n",
        "    except ZeroDivisionError:\n",
        (EARLY, FOLDER + "test_a_rank_killed_before_the_first_checkpoint_is_not_told_to_go_on"),
        "what is said of the last checkpoint is not looked up",
    ),
    mutant(
        "meeting", "always-named",
        'named: bool = not hasattr(os, "memfd_create")',
        "named: bool = True",
        (FOLDER + "test_a_run_that_is_killed_whole_leaves_no_file",),
        "a run that is killed with its launcher leaves a folder",
    ),
    mutant(
        "stop", "starter-s-things-left",
        "        try:\n            last()\n        finally:\n",
        "        try:\n            assert last\n        finally:\n",
        (WITHOUT,),
        "what the starter would have removed stays",
    ),
]  # fmt: skip
