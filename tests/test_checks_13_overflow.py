"""What `read_log` draws, held to the library's own reader of such logs.

The logs are drawn from a scale that a test holds to DeepSpeed's own, line by line.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import nbformat

from course_lib.classroom.checks.lesson_13 import logs, overflows
from course_lib.deepspeed_config.overflow_log import NONE, read_overflows
from course_lib.zero.precision import LossScale
from tests.answers.lesson_13_log import WRONG_LOG

ROOT = Path(__file__).resolve().parent.parent


def test_a_misreading_has_a_name_of_its_own():
    assert len({called for _, called in WRONG_LOG.values()}) >= 25
    assert {idea.name for idea in overflows.IDEAS} <= {called for _, called in WRONG_LOG.values()}


def test_every_drawn_run_is_what_its_log_says():
    """The run knows what happened; the lines alone say the same to the reader of the library."""
    seen = set()
    for seed in range(10):
        for log in overflows.CASES.drawn(seed):
            wanted, read = logs.happened(log), read_overflows(log.lines)
            verdict = logs.SETTLED if read.verdict == NONE else read.verdict
            got = (read.skipped, len(log.steps) - read.skipped, read.scale, read.grown, verdict)
            assert got == tuple(wanted.values()), "\n".join(log.lines)
            seen.add(verdict)
    assert seen == set(logs.VERDICTS)


def test_the_question_prints_a_short_log_of_rank_0_that_goes_up_and_down():
    page = ROOT / "solutions/13_deepspeed/read_log.ipynb"
    block = nbformat.read(page, as_version=4).cells[0].source.split("```\n")[1].splitlines()
    scale = LossScale(2.0**16, window=3, patience=2)
    run = {"ranks": 1, "first": 1, "every": 5}
    whole = logs._log(Random(13), scale, lambda n, value: value > 2**14 or n == 8, 14, **run).lines
    for line in block:
        assert line == "…" or any(full.endswith(line) for full in whole), line
