"""The check of `read_log`: what is drawn, and what is said.

The logs are drawn from a scale that a test holds to DeepSpeed's own, line by line.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_13 import logs, overflows
from course_lib.classroom.checks.lesson_13.log_ideas import IDEAS, Idea
from course_lib.deepspeed_config.overflow_log import NONE, read_overflows
from tests.answers.lesson_13_log import WRONG_LOG

ROOT = Path(__file__).resolve().parent.parent
NAME = "read_log"
SEEDS = range(10)
IN_MORE_WAYS = {  # misreadings of one name that lead to several values
    "DeepSpeed's count believed": 3,
    "two ends taken for one": 2,
    "one at the least scale": 2,
    "the least scale is not 1": 2,
    "down to the least": 2,
    "a long row is lost": 15,
}


@pytest.fixture(scope="module")
def desk():
    desk = Desk()
    yield desk
    desk.judge.stop()


def reference() -> str:
    """The answer cell of the solution, without the magic's line."""
    path = ROOT / "solutions" / "13_deepspeed" / f"{NAME}.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    return next(c.source for c in cells if c.id == f"{NAME}-answer").split("\n", 1)[1]


@pytest.mark.slow  # its notebook, which each run executes, says the same
def test_the_reference_is_right(desk):
    assert desk.check(NAME, {NAME: reference()}).outcome == "right"


def test_a_blank_is_not_attempted(desk):
    assert desk.check(NAME, {NAME: f"def {NAME}(lines):\n    ...\n"}).outcome == "not attempted"


def test_a_misreading_has_a_name_of_its_own():
    assert len({called for _, called in WRONG_LOG.values()}) >= 25
    ways = Counter((idea.key, idea.name) for idea in IDEAS)
    assert {name: count for (_, name), count in ways.items() if count > 1} == IN_MORE_WAYS
    assert {idea.name for idea in IDEAS} <= {called for _, called in WRONG_LOG.values()}


# ---- what is drawn
def test_every_drawn_run_is_what_its_log_says():
    """The run knows what happened; the lines alone say the same to the reader of the library."""
    seen = set()
    for seed in SEEDS:
        for log in logs.drawn(seed):
            wanted, read = logs.happened(log), read_overflows(log.lines)
            verdict = logs.SETTLED if read.verdict == NONE else read.verdict
            got = (read.skipped, len(log.steps) - read.skipped, read.scale, read.grown, verdict)
            assert got == tuple(wanted.values()), "\n".join(log.lines)
            seen.add(verdict)
    assert seen == set(logs.VERDICTS)


def test_the_solution_s_function_reads_the_same():
    space: dict = {}
    exec(reference(), space)
    for seed in SEEDS:
        for log in logs.drawn(seed):
            assert space[NAME](log.lines) == logs.happened(log), "\n".join(log.lines)


def test_no_idea_is_right_and_no_two_are_alike_on_what_is_drawn():
    """Alike are at most two ways of one idea, of which the same is said."""
    for seed in SEEDS:
        drawn = logs.drawn(seed)
        right = [logs.happened(log) for log in drawn]
        seen: list[tuple[str, list, Idea]] = []
        for idea in IDEAS:
            gives = [idea.gives(log) for log in drawn]
            assert gives != [truth[idea.key] for truth in right], (seed, idea.name)
            others = [one for key, given, one in seen if (key, given) == (idea.key, gives)]
            assert all(one[1:3] == idea[1:3] for one in others), (seed, idea.name, others)
            seen.append((idea.key, gives, idea))


def test_each_check_draws_other_logs():
    assert logs.drawn(1) != logs.drawn(2) and logs.drawn(1) == logs.drawn(1)


def test_the_question_prints_the_log_that_is_drawn_for_it():
    cells = nbformat.read(ROOT / f"solutions/13_deepspeed/{NAME}.ipynb", as_version=4).cells
    block = cells[0].source.split("```\n")[1].splitlines()
    whole = logs.printed()
    for line in block:
        assert line == "…" or any(full.endswith(line) for full in whole), line


@pytest.mark.parametrize("key", logs.KEYS)
def test_a_refusal_does_not_say_what_is_right(desk, key):
    """The message has the answer's own value, and never the right one beside it."""
    drawn = logs.drawn(7)
    wanted = [logs.happened(log)[key] for log in drawn]
    seen = ["?" if key == logs.VERDICT else -7] * len(drawn)
    with pytest.raises(overflows.Finding) as refused:
        overflows._refuse(key, seen, wanted, list(range(len(drawn))), drawn)
    told = str(refused.value).split("You have")[0]
    said = [str(value) for value in {*wanted} if value is not None]
    assert not any(f" {value} " in f" {told} " for value in said if value != str(len(drawn)))
