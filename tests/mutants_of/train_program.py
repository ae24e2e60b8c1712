"""Mistakes in the program of course_lib/train: options, checkpoints, signals, launcher."""

from tests.mutation import Mutant

HOME = "course_lib/train/"
OPTIONS = "tests/train/test_options.py::"
WRONG = OPTIONS + "test_a_wrong_call_is_refused_by_name"
IN_FILE = OPTIONS + "test_a_file_that_says_something_wrong_is_refused"
OTHERWISE = OPTIONS + "test_going_on_otherwise_is_refused"
RUNS = "tests/train/test_program.py::"
LEARNS = RUNS + "test_it_learns_tells_and_leaves_a_curve_a_picture_and_a_checkpoint"
TORCHRUN = RUNS + "test_under_torchrun_it_is_the_same_run"
SLURM = RUNS + "test_under_slurm_each_task_finds_its_place"
KILLED = RUNS + "test_a_rank_killed_in_a_step_costs_the_steps_since_the_last_checkpoint"
SIGNAL = RUNS + "test_a_signal_ends_it_after_the_step_and_nothing_is_lost"
SECOND = RUNS + "test_a_second_signal_ends_it_at_once"
ORPHANS = RUNS + "test_when_the_launcher_is_killed_its_ranks_end"
NAN = RUNS + "test_a_loss_that_is_no_number_is_told_with_its_step_and_rank"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"program-{name}", f"{HOME}{file}.py", old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "options", "misspelt-taken",
        "    if unknown:\n",
        "    if unknown is None:\n",
        (f"{WRONG}[not an option]", f"{WRONG}[a word of its own]"),
        "a default stays in place without a word", "T34",
    ),
    mutant(
        "options", "misspelt-key-taken",
        "        if option is None:\n            near",
        "        if option is None:\n            continue\n            near",
        (IN_FILE,),
        "a key of the file that is no option is left out", "T34",
    ),
    mutant(
        "options", "any-type",
        "        if not of_kind(value, type(option.default)):\n",
        "        if value is values:\n",
        (IN_FILE,),
        '"3" and true are numbers', "T34",
    ),
    mutant(
        "options", "file-counts-more",
        "typed = {**(_from_file(Path(path), reader) if path else {}), **typed}",
        "typed = {**typed, **(_from_file(Path(path), reader) if path else {})}",
        (OPTIONS + "test_a_file_says_the_same_as_the_line_and_the_line_counts_more",),
        "what is typed is not what runs",
    ),
    mutant(
        "checks", "ranks-left-over",
        "    if world % options.tp:\n",
        "    if options.tp > world:\n",
        (f"{WRONG}[ranks left over]",),
        "a rank belongs to no model",
    ),
    mutant(
        "checks", "nan-is-a-bound",
        "if not (value >= least and math.isfinite(value)):",
        "if value < least:",
        (f"{WRONG}[not finite]",),
        "a rate of NaN passes every comparison",
    ),
    mutant(
        "checks", "heads-unchecked",
        "        _check_config(options.config(), options)\n",
        "        options.config()\n",
        (f"{WRONG}[more ranks than heads]", f"{WRONG}[kv heads that cannot be shared]"),
        "ranks are started to find out that there are not enough heads",
    ),
    mutant(
        "options", "sizes-beside-from",
        "    if sizes:\n",
        "    if sizes is None:\n",
        (f"{WRONG}[a size of a model that has one]",),
        "a size that was asked for is dropped without a word", "T34",
    ),
    mutant(
        "entry", "every-rank-says-it",
        "        if rank == 0:\n            _line(str(error))\n",
        "        _line(str(error))\n",
        (OPTIONS + "test_under_a_launcher_rank_0_alone_says_it[1]",),
        "a hundred ranks print a hundred lines", "T35",
    ),
    mutant(
        "entry", "neighbour-s-end-told",
        "    if _neighbour_gone(error):\n",
        "    if error is None:\n",
        (KILLED,),
        "who was left behind complains louder than the cause", "T35",
    ),
    mutant(
        "checks", "anew-over-a-run",
        "    elif options.out and ((top / LATEST).exists() or whole(top)):\n",
        "    elif False:\n",
        (OPTIONS + "test_beginning_anew_in_the_folder_of_a_run_is_refused",),
        "a run's checkpoints are overwritten by another's",
    ),
    mutant(
        "checks", "goes-on-otherwise",
        "        if name not in FREE | LAYOUT and saved.get(name) != value:\n",
        "        if False:\n",
        (OTHERWISE,),
        "a run goes on as another, and its curve has a kink that nobody typed",
    ),
    mutant(
        "program", "masks-by-the-past",
        '                seed_all(mix(options.seed, done), replica=mesh.get_group("dp").rank())\n',
        '                if not done:\n                    seed_all(options.seed)\n',
        (KILLED,),
        "masks after going on are others than without the stop", "T32",
    ),
    mutant(
        "journal", "data-from-the-start",
        '                text.batches.restore(record["data"])\n',
        "",
        (KILLED,),
        "the rows of the beginning are read again", "T32",
    ),
    mutant(
        "record", "any-form",
        'if record.get("form") != FORM or lost:',
        "if lost:",
        (OPTIONS + "test_a_record_that_is_not_one_is_an_error",),
        "a record of another form is read as this one",
    ),
    mutant(
        "stop", "handler-alone",
        "                os._exit(128 + number[0])\n",
        "                pass\n",
        (SECOND,),
        "a rank that waits for a hung neighbour cannot be ended", "T35",
    ),
    mutant(
        "stop", "first-signal-ends",
        "            if self.signal is None:\n",
        "            if False:\n",
        (f"{SIGNAL}[one rank]",),
        "the first signal ends the process in the middle of a step",
    ),
    mutant(
        "stop", "orphans",
        "    threading.Thread(target=watch, daemon=True",
        "    threading.Thread(target=print, daemon=True",
        (ORPHANS,),
        "ranks go on without their starter", "T35",
    ),
    mutant(
        "journal", "no-save-at-a-stop",
        "        last = result.stop or step == options.steps\n",
        "        last = step == options.steps\n",
        (f"{SIGNAL}[one rank]",),
        "what was learnt since the last checkpoint is lost at a stop",
    ),
    mutant(
        "journal", "own-signal-alone",
        "    dist.all_gather_object(names, stop.signal.name if stop.signal else None)\n",
        "    names[0] = stop.signal.name if stop.signal else None\n",
        (f"{SIGNAL}[one rank]",),
        "rank 0 does not know who asked another rank to stop",
    ),
    mutant(
        "program", "nan-saved",
        "                except (FloatingPointError, NotFinite) as error:\n",
        "                except ZeroDivisionError as error:\n",
        (NAN,),
        "every rank prints a traceback, and none the step",
    ),
    mutant(
        "launch", "cause-of-the-last",
        "rank, code = (causes or failed)[0]",
        "rank, code = failed[-1]",
        ("tests/train/test_folder.py::test_the_cause_is_told_in_whatever_order_ranks_end",),
        "whoever ended last is told as the cause", "T35",
    ),
    mutant(
        "launch", "signals-not-passed-on",
        "                self._send(self.signals[forwarded])\n",
        "",
        (f"{SIGNAL}[launcher]", SECOND),
        "Ctrl-C reaches nobody", "T35",
    ),
    mutant(
        "launch", "refused-late",
        "        options = resolve(replace(options, ranks=count), count)\n",
        "        options = replace(options, ranks=count)\n",
        (OPTIONS + "test_course_train_says_it_in_a_line_and_starts_nobody[ranks left over]",),
        "ranks are started to say that the call was wrong",
    ),
    mutant(
        "launch", "no-number",
        "    if not 0 <= options.ranks <= MOST:\n",
        "    if options.ranks is None:\n",
        (OPTIONS + "test_no_ranks_are_as_many_as_one_model_is_sharded_over",),
        "a run of a million ranks starts them",
    ),
    mutant(
        "options", "level-rate-at-once",
        "min(1.0, (step + 1) / max(1, self.warmup))",
        "1.0",
        (LEARNS,),
        "no warmup",
    ),
    mutant(
        "entry", "launchers-unheard",
        "        return ranks.start(timeout=timeout)\n",
        '        return ranks.start(0, 1, rendezvous=tempfile.mktemp(), timeout=timeout)\n',
        (TORCHRUN, SLURM),
        "each process trains alone, as if nobody had started it",
    ),
    Mutant(
        "program-a-picture-needs-a-figure",
        "course_lib/train/__main__.py",
        '        done["figure"] = draw(done)\n',
        '        done["figure"] = None\n',
        (LEARNS,),
        "no picture is left",
    ),
    mutant(
        "report", "peak-of-one-rank",
        "return options.peak_tflops * 1e12 * me.world",
        "return options.peak_tflops * 1e12",
        (LEARNS,),
        "the utilization of all is a percentage of one rank's peak",
    ),
]  # fmt: skip
