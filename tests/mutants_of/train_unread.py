"""Mistakes in what a run does when nobody reads on, and in what its bar and its refusals say."""

from tests.mutation import Mutant

HOME = "course_lib/train/"
UNREAD = "tests/train/test_unread.py::"
PIPE = UNREAD + "test_a_run_goes_on_when_nobody_reads_its_output"
NOWHERE = UNREAD + "test_what_nobody_reads_goes_nowhere_and_a_disk_that_fails_is_an_error"
TERMINAL = UNREAD + "test_a_terminal_that_closes_ends_a_run_after_the_step_with_a_checkpoint"
HANGUP = UNREAD + "test_a_hangup_is_one_request_however_often_and_none_under_nohup"
BAR = "tests/train/test_shown.py::test_a_bar_has_step_and_time_left_and_as_many_words_as_fit"
WRONG = "tests/train/test_options.py::test_a_wrong_call_is_refused_by_name"
IN_FILE = "tests/train/test_options.py::test_a_file_that_says_something_wrong_is_refused"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"unread-{name}", f"{HOME}{file}.py", old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "report", "a-pipe-is-a-failure",
        "        self.stream = Unbroken(stream or sys.stdout)\n",
        "        self.stream = stream or sys.stdout\n",
        (f"{PIPE}[lines]", NOWHERE),
        "`| head -1` ends a training run",
    ),
    mutant(
        "__main__", "a-document-nobody-reads",
        "file=Unbroken(sys.stdout), flush=True)\n",
        "file=sys.stdout, flush=True)\n",
        (f"{PIPE}[json]",),
        "a run that was trained and saved ends as a failure",
    ),
    mutant(
        "report", "a-terminal-is-a-failure",
        "error.errno == errno.EIO and self._device()",
        "error.errno == errno.EIO and not self",
        (TERMINAL,),
        "who closes a terminal loses the steps since the last checkpoint",
    ),
    mutant(
        "report", "a-full-disk-is-silent",
        "            if not (error.errno == errno.EPIPE or",
        "            if not (error.errno or",
        (NOWHERE,),
        "a log ends without a word where a disk is full",
    ),
    mutant(
        "report", "flushed-at-the-end",
        "            os.dup2(nowhere, self._stream.fileno())",
        "            assert nowhere",
        (NOWHERE,),
        "what is left in the buffer fails at Python's own end",
    ),
    mutant(
        "launch", "a-hangup-kills-the-launcher",
        "        for one in heard():\n",
        "        for one in heard()[:2]:\n",
        (TERMINAL,),
        "ssh that breaks off ends a run without a checkpoint", "T35",
    ),
    mutant(
        "stop", "a-hangup-kills-a-rank",
        "(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)",
        "(signal.SIGTERM, signal.SIGINT)",
        (TERMINAL, f"{HANGUP}[terminal-1]"),
        "ssh that breaks off ends a rank in the middle of a step", "T35",
    ),
    mutant(
        "stop", "a-second-hangup-insists",
        "    return number in SIGNALS and number != signal.SIGHUP\n",
        "    return number in SIGNALS\n",
        (f"{HANGUP}[terminal-1]", TERMINAL),
        "kernel and shell both tell of a terminal, and the step under way is lost",
    ),
    mutant(
        "stop", "nohup-unheard",
        "if not (one == signal.SIGHUP and ignored)]",
        "if one]",
        (f"{HANGUP}[nohup-None]",),
        "nohup changes nothing",
    ),
    mutant(
        "__main__", "a-bar-of-all-words",
        "        texts = list(progress.shorter())\n",
        "        texts = [str(progress)] * 3\n",
        (f"{BAR}[80-loss 10.1234  123,456 tokens/s-19]",),
        "a terminal of 80 columns shows neither step nor time left",
    ),
    mutant(
        "__main__", "a-bar-without-end",
        "max(1, min(self.MOST, room - len(text)))",
        "max(1, room - len(text))",
        (BAR,),
        "on a wide screen the words are a hand's breadth from the step",
    ),
    mutant(
        "checks", "any-timeout",
        "    if not 0 < options.timeout <= LONGEST:\n",
        "    if not 0 < options.timeout:\n",
        (f"{WRONG}[more time than there is]",),
        "a number of seconds is a traceback",
    ),
    mutant(
        "checks", "any-vocabulary",
        "        if tokenizer and options.vocabulary <= BYTES + 1:\n",
        "        if tokenizer and options.vocabulary < BYTES + 1:\n",
        (f"{WRONG}[a vocabulary of bytes]",),
        "ranks are started to find out that the tokenizer cannot be trained",
    ),
    mutant(
        "checks", "validated-on-nothing",
        ' and "validate_every" in options.typed:\n',
        " and not options.typed:\n",
        (f"{WRONG}[nothing to validate on]",),
        "a validation loss was asked for, and none is told", "T34",
    ),
    mutant(
        "checks", "a-pattern-of-nothing",
        '        if parts == [""]:\n',
        "        if not parts:\n",
        (f"{WRONG}[a unit without a name]",),
        "a comma too many is said to be a module that there is not",
    ),
    mutant(
        "options", "a-file-without-a-name",
        '        raise Refused(f"--config {path}: {error}") from error\n',
        "        raise\n",
        (IN_FILE,),
        "what stands in a file is said to have been typed",
    ),
]  # fmt: skip
