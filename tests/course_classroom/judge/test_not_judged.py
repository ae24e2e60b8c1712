"""What cannot be judged is neither right nor wrong: it says why, and costs nobody a point."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from typer.testing import CliRunner

from course_classroom.cli import app
from course_classroom.judge import frame
from course_classroom.judge.finding import NotJudged
from course_classroom.judge.judge import Judge
from course_classroom.progress.log import MARK, Progress
from tests.course_classroom.grading.hand_in import MEAN, RIGHT, WHO, WHO_RIGHT, answered, save

BUSY = "This machine is busy: try again."
ANSWER = {MEAN: RIGHT.split("\n", 1)[1]}


class Stopped(Judge):
    """A judge that was asked to stop, and how often."""

    stops = 0

    def stop(self) -> None:
        self.stops += 1


def judged(error: BaseException) -> tuple[frame.Verdict, Stopped]:
    def judge(answer, ranks) -> None:
        raise error

    exercise = dataclasses.replace(frame.find(MEAN), judge=judge)
    ranks = Stopped()
    return frame.judge(exercise, ANSWER, {}, ranks), ranks


def test_a_check_says_why_it_does_not_judge():
    verdict, ranks = judged(NotJudged(BUSY))
    assert (verdict.outcome, verdict.name, verdict.points) == ("not judged", "", 0)
    assert str(verdict) == f"– {MEAN}: not judged\n{BUSY}"
    assert repr(verdict) == "0"  # what a grader that runs the notebook reads
    assert "✗" not in verdict._repr_html_() and "double" in verdict._repr_html_()
    assert ranks.stops == 0, "nothing is known to be wrong with its ranks"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (IndexError("index 3 is out of bounds"), "IndexError: index 3 is out of bounds"),
        (RuntimeError("rank 1 ended\n(exit code -9)"), "RuntimeError: rank 1 ended (exit code -9)"),
        (ValueError("x" * 5000), "ValueError: " + "x" * 200),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_check_that_fails_itself_does_not_judge(error, line):
    verdict, ranks = judged(error)
    assert (verdict.outcome, verdict.name, verdict.points) == ("not judged", "", 0)
    assert "says nothing about your answer" in verdict.text and "report" in verdict.text
    assert verdict.text.splitlines()[-1].startswith(line)
    assert re.search(r"\(test_not_judged\.py, line \d+\)$", verdict.text)
    assert len(verdict.text) < 800
    assert ranks.stops == 1, "the next check meets ranks that work"


def test_an_interrupt_is_the_learner_s():
    with pytest.raises(KeyboardInterrupt):
        judged(KeyboardInterrupt())


@pytest.fixture
def work(tmp_path_factory, monkeypatch):
    """A learner's workspace with lesson 00, of which one exercise cannot be tried."""
    work = tmp_path_factory.mktemp("w")
    (work / MARK).mkdir()
    monkeypatch.setenv("COURSE_WORK", str(work))
    monkeypatch.setenv("COURSE_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))

    def busy(self, *modules: str) -> None:
        raise NotJudged(BUSY)

    monkeypatch.setattr(Judge, "ready", busy)
    save(answered(RIGHT), work / "exercises" / "00_start_here" / f"{MEAN}.ipynb")
    save(answered(WHO_RIGHT, WHO), work / "exercises" / "00_start_here" / f"{WHO}.ipynb")
    return work


def test_from_the_shell_the_others_are_checked_and_the_exit_code_is_another(work):
    done = CliRunner().invoke(app, ["check", "00"])
    assert done.exit_code == 3, done.output
    assert f"– {MEAN}: not judged\n{BUSY}" in done.stdout and f"✓ {WHO}: right" in done.stdout
    assert f"Not judged, so not counted as wrong: {MEAN}. `course check {MEAN}`" in done.stderr
    assert [event["exercise"] for event in Progress(work).read().of("check")] == [WHO]


def test_a_wrong_answer_beside_it_is_still_wrong(work):
    wrong = WHO_RIGHT.replace("len('abc')", "30")
    save(answered(wrong, WHO), work / "exercises" / "00_start_here" / f"{WHO}.ipynb")
    done = CliRunner().invoke(app, ["check", "00", "--json"])
    assert done.exit_code == 1, done.output
    told = {one["exercise"]: one["outcome"] for one in json.loads(done.stdout)["checks"]}
    assert told == {MEAN: "not judged", WHO: "wrong"}
