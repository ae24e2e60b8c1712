"""The judge's ranks: what they hold of the process that judges, and what a trial makes of them."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from course_classroom.judge import answer, frame, layers
from course_classroom.judge.finding import Finding, NotJudged
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import LIMIT, WORLD, Judge, _finding, reference
from course_classroom.ranks.cluster import Ended
from course_classroom.ranks.hangs import Fact, Scene


@pytest.fixture
def judge(desk) -> Judge:
    return desk.judge


def held(process: int | str) -> set[str]:
    """What a process's descriptors lead to."""
    folder = Path(f"/proc/{process}/fd")
    return {
        os.readlink(folder / name) for name in os.listdir(folder) if (folder / name).is_symlink()
    }


def ended(*facts: Fact) -> Ended:
    scene = Scene(None, 1, [0, 1, 2], facts=list(facts))
    return Ended([], scene, limit=LIMIT)


def test_a_rank_that_is_busy_in_the_checks_own_call_says_nothing_about_the_answer():
    ours = Fact(0, "interrupted", "was still busy in line 1: __report__ = __tried__()")
    theirs = Fact(1, "interrupted", "was still busy in your cell, line 7: while True:")
    waits = Fact(2, "waited", "waited in barrier for rank 0 in your cell, line 3")
    for facts in ([ours], [ours, waits], [ours, replace(ours, rank=1, kind="stuck")]):
        with pytest.raises(NotJudged, match="in the check's call, outside your lines"):
            raise _finding(ended(*facts), "on 3 ranks")
    assert _finding(ended(theirs, ours), "on 3 ranks").name == "no end"
    assert _finding(ended(theirs, waits), "on 3 ranks").name == "no end"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="descriptors are read in /proc")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_rank_holds_no_descriptor_of_the_process_that_judges(monkeypatch, tmp_path, start):
    """A verdict goes out by a pipe of that process: an answer must not find it open."""
    pipe, (one, other) = os.pipe(), socket.socketpair()
    book = os.open(tmp_path / "verdicts", os.O_CREAT | os.O_WRONLY)
    ours = [*pipe, one.fileno(), other.fileno(), book]
    for descriptor in ours:
        os.set_inheritable(descriptor, True)
    secret = {os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in ours}
    monkeypatch.setenv("COURSE_START", start)
    judge = Judge(idle_minutes=0)
    try:
        judge.ready()
        mine = held("self")
        assert secret <= mine
        for rank in judge.ranks:
            theirs = held(rank.process.pid)
            assert any(link.startswith("socket:") for link in theirs), "its own channels"
            shared = {link for link in mine & theirs if link.startswith(("pipe:", "socket:"))}
            assert not shared | (secret & theirs)
    finally:
        judge.stop()
        one.close()
        other.close()
        for descriptor in (*pipe, book):
            os.close(descriptor)


EXERCISES = [one for one in frame.exercises().values() if isinstance(one, Exercise)]
LOSS = """%%ranks
from course_lib.collectives import all_reduce


def uneven_loss(x, table, target, length, group):
    own = (x + table[: x.shape[1]] - target).square().sum()
    return all_reduce(own.detach(), group) / (x.shape[0] * length * x.shape[2])
"""


def read(source: str) -> answer.Answer:
    return answer.read("uneven_loss", {"uneven_loss": source.partition("\n")[2]})


def test_a_trial_is_a_function_with_data_and_its_reports_are_data(judge):
    found = read(LOSS)
    judge.take(found, layers.__name__)
    reports = judge.trial(found, layers.run, *CASE, members=[1, 2], when="on 2")
    assert [report["kind"] for report in reports] == ["Tensor", "Tensor"]
    assert reports[0]["out"] == reports[1]["out"] > 0
    assert [report["forward"]["ops"] for report in reports] == [{"all_reduce": 1}] * 2
    (alone,) = judge.trial(found, layers.run, *CASE, members=[2], when="alone")
    assert alone["forward"]["bytes"] == 0, "each trial has a group of its own"


def test_a_slow_trial_says_where_the_answer_is(judge, monkeypatch):
    said, note = [], judge.note
    monkeypatch.setattr(judge, "note", lambda *what: (note(*what), said.append(judge.says())))
    found = read(LOSS.replace("    own =", "    __import__('time').sleep(2.3)\n    own ="))
    judge.take(found, layers.__name__)
    judge.trial(found, layers.run, *CASE, members=ALL, when="on 3 ranks")
    assert said[0].startswith("trying `uneven_loss` on 3 ranks, up to 10 s of the ranks' own")
    assert "\nranks 0–2 are in your cell, line 6: __import__('time').sleep(2.3)" in said[-1]


CASE = ("course_lessons.lesson_06.uneven_loss", {"b": 2, "s": 5, "h": 3, "longest": 9}, 7)
ALL = [0, 1, 2]
BREAKS = {
    "another signature": ("def uneven_loss(x):\n    return x\n", "takes 1 positional argument"),
    "an unknown name": ("def uneven_loss(*args):\n    return unknown\n", "NameError"),
}


@pytest.mark.parametrize("how", BREAKS)
def test_an_error_speaks_of_the_answer_and_of_no_plumbing(judge, how):
    body, words = BREAKS[how]
    found = read(f"%%ranks\nfrom course_lib.collectives import all_reduce\n\n\n{body}")
    judge.take(found, layers.__name__)
    with pytest.raises(Finding) as raised:
        judge.trial(found, layers.run, *CASE, members=ALL, when="on 3 ranks")
    text = raised.value.text
    assert raised.value.name == "raised" and words in text
    assert "__" not in text and "bench" not in text and "lambda" not in text
    if how == "another signature":
        assert "given in the check's call" in text


class Stop(Exception):
    pass


class Recorder(Judge):
    """Notes what a check asks of the judge, up to its first trial; no rank is started."""

    def __init__(self):
        super().__init__(idle_minutes=0)
        self.readied: list[tuple[str, ...]] = []
        self.asked: object = None

    def ready(self, *modules):
        self.readied.append(modules)

    def everywhere(self, code, *args, **kwargs):
        return []

    def measured(self, function, *args):
        return [{}] * WORLD

    def trial(self, found, function, *args, **kwargs):
        self.asked = function
        raise Stop


@pytest.fixture(scope="module")
def first_trials() -> dict[str, Recorder]:
    made = {}
    for exercise in EXERCISES:
        made[exercise.name] = recorder = Recorder()
        nothing = answer.Answer(exercise.name, (), True, frozenset())
        with pytest.raises(Stop):
            exercise.judge(nothing, recorder)
    return made


def test_an_answer_meets_ranks_that_were_cleared_once(first_trials):
    readied = {name: len(recorder.readied) for name, recorder in first_trials.items()}
    assert readied == dict.fromkeys(first_trials, 1)


def test_what_tries_an_answer_is_loaded_before_the_answer_comes(first_trials):
    for name, recorder in first_trials.items():
        assert recorder.readied[0][0] == reference(recorder.asked)[0], name
