"""The frame of all checks, on lesson 01's ring: what breaks, what is blank, what is said.

Every answer here runs on the judge's real ranks. Mistakes that merely raise, hang or kill cost one
check and no more.
"""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from course_classroom.judge import answer, bench, frame, judge
from course_classroom.judge.desk import Desk
from course_lessons.lesson_00 import trial
from course_lessons.lesson_01 import ring_all_reduce as ring
from tests.course_lessons.answers.lesson_01 import RING

NAME = "ring_all_reduce"


def changed(old: str, new: str) -> str:
    """The right answer with one mistake in it."""
    assert RING.count(old) == 1, old
    return RING.replace(old, new)


# Answers that do not come back, or not in one piece; the name of each, and words about it.
BROKEN = {
    "raises": (
        "def ring_all_reduce(x, group):\n    return x[group.rank()] / 0 + y\n",
        "raised",
        "ranks 0, 1 and 2 raised NameError: name 'y' is not defined in your cell, line 3:",
    ),
    "all receive first": (
        "def ring_all_reduce(x, group):\n"
        "    n, rank = group.size(), group.rank()\n"
        "    arrival = torch.empty_like(x)\n"
        "    dist.recv(arrival, group=group, group_src=(rank - 1) % n)\n"
        "    dist.send(x, group=group, group_dst=(rank + 1) % n)\n"
        "    return x + arrival\n",
        "deadlock",
        "no rank has sent",
        "waited in recv(from rank 2)",
    ),
    "no end": ("def ring_all_reduce(x, group):\n    while True:\n        x = x + 0\n", "no end"),
    "kills its rank": (
        "import os, signal\n\n"
        "def ring_all_reduce(x, group):\n"
        "    if group.rank() == 1:\n        os.kill(os.getpid(), signal.SIGKILL)\n    return x\n",
        "killed",
    ),
    "ends the interpreter": ("def ring_all_reduce(x, group):\n    raise SystemExit(3)\n", "raised"),
    "ruins torch": (
        changed(
            "    return", "    dist.all_reduce = None\n    dist.destroy_process_group()\n    return"
        ),
        "broke its ranks",
    ),
    "is no Python": (
        "x = 1\ndef ring_all_reduce(x, group)\n    return x\n",
        "syntax",
        "line 3",  # the line of the magic is the first
    ),
}


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.judge.stop()


def judged(desk: Desk, source: str) -> frame.Verdict:
    return desk.check(NAME, {NAME: source})


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_answer_costs_one_check(desk, how, monkeypatch):
    source, name, *words = BROKEN[how]
    if name == "no end":
        monkeypatch.setattr(judge, "LIMIT", 3.0)
    verdict = judged(desk, source)
    assert (verdict.outcome, verdict.name) == ("wrong", name), str(verdict)
    assert [text for text in words if text not in verdict.text] == []
    assert judged(desk, RING).outcome == "right"


def test_an_answer_that_prints_megabytes_is_judged_by_what_it_does(desk):
    noisy = changed("    n, rank", "    print('x' * 5_000_000)\n    n, rank")
    assert judged(desk, noisy).outcome == "right"


def test_nothing_of_an_earlier_answer_is_left(desk):
    helper = "def right_of(rank, n):\n    return (rank + 1) % n\n"
    split = changed("(rank + 1) % n)", "right_of(rank, n))")
    assert desk.check(NAME, {NAME: split, "right_of": helper}).outcome == "right"
    verdict = judged(desk, split)  # the helper's cell is gone
    assert verdict.name == "raised"
    assert "right_of" in verdict.text


@pytest.mark.parametrize(
    "body",
    [
        "...",
        "pass",
        "raise NotImplementedError()",
        "# YOUR CODE HERE\n    raise NotImplementedError",
    ],
)
def test_a_blank_is_not_attempted(desk, body):
    source = f'def ring_all_reduce(x, group):\n    """Its doc line."""\n    {body}\n'
    verdict = judged(desk, source)
    assert (verdict.outcome, verdict.points) == ("not attempted", 0)


def test_a_cell_that_was_never_run_is_not_attempted(desk):
    verdict = desk.check(NAME, {})
    assert verdict.outcome == "not attempted"
    assert "Run the cell" in verdict.text


def test_trial_runs_below_the_answer_stay_out():
    cell = RING + "\nmine = torch.ones(3)\nSIZE = 3\nprint(ring_all_reduce(mine, group))\n"
    cell += "dist.all_reduce = None\n"
    found = answer.read(NAME, {NAME: cell})
    assert "SIZE = 3" in found.cells[-1] and "mine" not in found.cells[-1]
    # What is kept stays on its line, so that an error names the line that the learner sees.
    kept, written = found.cells[-1].splitlines(), cell.splitlines()
    assert all(line in ("", written[i]) for i, line in enumerate(kept))
    assert "group" not in found.free_names


def test_counting_finds_whose_numbers_were_added_how_often():
    inputs = [bench.inputs(12, 7, r) for r in range(3)]
    wrong = inputs[0] + inputs[1] + inputs[2]
    wrong[4:8] += inputs[2][4:8] - inputs[0][4:8]
    reports = [{"out": wrong}] * 3
    told = ring._counted(trial.Call(inputs, reports, "here"))
    assert told == (
        "Elements 4 to 7 on rank 0 count those of rank 0 0 times and those of rank 2 2 times, "
        "instead of once (here)."
    )


def test_hints_come_in_steps_and_never_run_out(desk):
    ring = frame.find(NAME)
    told = [desk.hint(NAME) for _ in range(len(ring.hints) + 1)]
    assert told[0].startswith(f"Hint 1 of {len(ring.hints)}: ")
    assert len(set(told)) == len(told)
    assert told[-1].startswith("These were all the hints")
    assert desk.hint(NAME) == told[-1]


def test_a_verdict_shows_its_outcome_in_words_and_its_points_to_a_grader(desk):
    verdict = frame.Verdict("f", frame.WRONG, "mean", "a < b & c", 0, 4)
    assert repr(verdict) == "0"
    assert "wrong" in verdict._repr_html_()
    assert "a &lt; b &amp; c" in verdict._repr_html_()
    assert repr(frame.Verdict("f", frame.RIGHT, "", "yes", 4, 4)) == "4"


def test_predictions_are_noted_compared_and_may_be_left_blank(desk):
    assert desk.predict("01.wire", ..., "MB") == "Prediction 01.wire: not attempted."
    assert "not attempted" in desk.measured("01.wire", 4.0, "MB")
    assert desk.predict("01.wire", 8, "MB") == "Prediction 01.wire: 8 MB."
    told = desk.measured("01.wire", 4.0, "MB")
    assert told == "Measured 01.wire: 4.0 MB. Prediction: 8 MB, 2 times as much."
    desk.predict("01.wire", 4, "MB")
    assert desk.measured("01.wire", 4.0, "MB").endswith("Prediction: the same.")
    assert desk.measured("01.wire", 4.0, "MB", 5.0).startswith("Measured 01.wire: 4.0 MB.")
    assert desk.measured("01.wire", None, "MB", 4).startswith("By the formula, 01.wire: 4 MB.")
    with pytest.raises(TypeError, match="neither a measurement nor a formula"):
        desk.measured("01.wire", None, "MB")
    with pytest.raises(TypeError, match="is a number"):
        desk.predict("01.wire", "four", "MB")


def test_a_judge_that_is_stopped_leaves_nothing(desk):
    desk.check(NAME, {NAME: RING})
    pids = [rank.process.pid for rank in desk.judge.ranks]
    assert len(pids) == 3
    folder = desk.judge.folder
    desk.judge.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not folder.exists()
    assert judged(desk, RING).outcome == "right"  # and it starts again when it is needed
