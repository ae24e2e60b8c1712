"""`read_log` of lesson 13: what an fp16 run has skipped, where its scale is, and how it stands.

Logs are drawn from runs of every kind; a wrong idea is recognised, key by key, by what it makes of
all of them.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_13 import log_trial as trial
from course_lib.classroom.checks.lesson_13.log_ideas import IDEAS, SAYS
from course_lib.classroom.checks.lesson_13.logs import (
    KEYS,
    VERDICT,
    VERDICTS,
    Log,
    drawn,
    happened,
)
from course_lib.classroom.checks.looking import THREE, Looks, fresh_seed
from course_lib.deepspeed_config.overflow_log import DIVERGED, LOOKING, NOT_FOUND, SETTLED

SHOWN = 4  # lines of a log in a message


class Trial(NamedTuple):
    reports: list[dict]
    logs: list[Log]
    when: str

    def each(self) -> list[tuple[Log, dict]]:
        """Each log with what came of it, of each rank."""
        return [
            (log, seen)
            for report in self.reports
            for log, seen in zip(self.logs, report["logs"], strict=True)
        ]


def judge_log(answer: Answer, judge: Judge) -> None:
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    logs = drawn(seed)
    when = f"in {len(logs)} drawn logs"
    reports = judge.trial(answer, trial.run, seed, members=THREE, when=when)
    LOOKS.at(answer, [Trial(reports, logs, when)])


def about(log: Log) -> str:
    """A log in words: how long it is, and how it ends."""
    shown = "\n".join(log.lines[-SHOWN:])
    return f"a log of {len(log.lines)} lines that ends\n{shown}\n"


def _look_at_returned(one: Trial) -> None:
    for log, seen in one.each():
        if seen["error"]:
            raise SAYS("stopped by an error", error=seen["error"], log=_odd(log), log_2=about(log))
    if all(seen["kind"] == "NoneType" for _, seen in one.each()):
        raise SAYS("nothing returned")


def _odd(log: Log) -> str:
    """What is particular of a log on which an answer stops."""
    return "at a log without any overflow: " if not log.skips else "at "


def _look_at_shape(one: Trial) -> None:
    for log, seen in one.each():
        if seen["kind"] != "dict":
            raise SAYS("not a dictionary", kind=seen["kind"], keys=", ".join(KEYS))
        if seen["lost"]:
            raise SAYS("a key missing", lost=", ".join(seen["lost"]), log=about(log))


def _look_at_inputs(one: Trial) -> None:
    if any(seen["changed"] for _, seen in one.each()):
        raise SAYS("input changed")


def _look_at_values(one: Trial) -> None:
    """Key by key in their order: a later one is often wrong because an earlier one is."""
    right = [happened(log) for log in one.logs]
    for report in one.reports:
        for key in KEYS:
            seen = [each["values"][key] for each in report["logs"]]
            wanted = [truth[key] for truth in right]
            wrong = [k for k in range(len(seen)) if not same(seen[k], wanted[k])]
            if wrong:
                _refuse(key, seen, wanted, wrong, one.logs)


def _refuse(key: str, seen: list, wanted: list, wrong: list[int], logs: list[Log]) -> None:
    log = logs[wrong[0]]
    head = f"`{key}` is not right in {len(wrong)} of {len(seen)} drawn logs. "
    tail = f"You have {seen[wrong[0]]!r} for {about(log)}"
    for idea in IDEAS:
        if idea.key == key and all(map(same, seen, map(idea.gives, logs))):
            raise Finding(idea.name, f"{head}{idea.text} {tail}")
    if key == VERDICT:
        words = {value for value in seen if value not in VERDICTS}
        if words:
            raise SAYS("another word", str=sorted(map(str, words))[0])
        ends = {
            "the end misread #1": SETTLED,
            "the end misread #2": LOOKING,
            "the end misread #3": NOT_FOUND,
            "the end misread #4": DIVERGED,
        }
        met = {entry: wanted[wrong[0]] == word for entry, word in ends.items()}
        SAYS.refuse(met, head=head, tail=tail)
    elif all(wanted[k] is None for k in wrong):
        raise SAYS("a scale from nowhere", head=head, tail=tail)
    raise Finding(f"{key} misread", head + tail)


def same(seen: object, wanted: object) -> bool:
    """Equal, a whole number like the float of it."""
    return type(seen) is not bool and seen == wanted


LOOKS = Looks(
    returned=_look_at_returned,
    shape=_look_at_shape,
    unchanged=_look_at_inputs,
    value=_look_at_values,
)
READ_LOG = Exercise(judge=judge_log, **SAYS.about)
