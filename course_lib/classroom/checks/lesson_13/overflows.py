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
from course_lib.classroom.checks.lesson_13.log_ideas import IDEAS
from course_lib.classroom.checks.lesson_13.logs import (
    KEYS,
    VERDICT,
    VERDICTS,
    Log,
    drawn,
    happened,
)
from course_lib.classroom.checks.looking import THREE, Looks, fresh_seed
from course_lib.classroom.checks.words import Page

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
            raise Finding(
                "stopped by an error",
                f"It ended with {seen['error']}, {_odd(log)}{about(log)}",
            )
    if all(seen["kind"] == "NoneType" for _, seen in one.each()):
        raise Finding(
            "nothing returned",
            "None came back; expected is a dictionary. Did you forget `return`?",
        )


def _odd(log: Log) -> str:
    """What is particular of a log on which an answer stops."""
    return "at a log without any overflow: " if not log.skips else "at "


def _look_at_shape(one: Trial) -> None:
    for log, seen in one.each():
        if seen["kind"] != "dict":
            raise Finding(
                "not a dictionary",
                f"A {seen['kind']} came back; expected is a dictionary with {', '.join(KEYS)}.",
            )
        if seen["lost"]:
            raise Finding("a key missing", f"Without {', '.join(seen['lost'])}: {about(log)}")


def _look_at_inputs(one: Trial) -> None:
    if any(seen["changed"] for _, seen in one.each()):
        raise Finding("input changed", "Your function changed the list of lines. Work on a copy.")


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
            raise Finding(
                "another word", f"{sorted(map(str, words))[0]!r} is none of the verdicts."
            )
    elif all(wanted[k] is None for k in wrong):
        raise Finding("a scale from nowhere", f"{head}No line of this log has a scale. {tail}")
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
READ_LOG = Exercise(judge=judge_log, **Page("lesson_13/read_log").about)
