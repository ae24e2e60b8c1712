"""`streamed_speed` of lesson 14: what streamed weights make of a token step.

Cases are drawn anew for each check; a wrong idea is recognised, key by key, by what it makes of all
of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_14 import speed_trial as trial
from course_lib.classroom.checks.lesson_14.speed_cases import KEYS, Case, drawn, right
from course_lib.classroom.checks.lesson_14.speed_ideas import IDEAS
from course_lib.classroom.checks.looking import THREE, Looks, fresh_seed

CLOSE = 1e-6  # relative


class Trial(NamedTuple):
    reports: list[dict]
    cases: list[Case]
    when: str

    def each(self) -> list[tuple[Case, dict]]:
        """Each case with what came of it, of each rank."""
        return [
            (case, seen)
            for report in self.reports
            for case, seen in zip(self.cases, report["cases"], strict=True)
        ]


def judge_speed(answer: Answer, judge: Judge) -> None:
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    cases = drawn(seed)
    when = f"in {len(cases)} drawn cases"
    reports = judge.trial(answer, trial.run, seed, members=THREE, when=when)
    LOOKS.at(answer, [Trial(reports, cases, when)])


def about(case: Case) -> str:
    """A case in words."""
    return ", ".join(f"{name} {value:.4g}" for name, value in case.items())


def _look_at_returned(one: Trial) -> None:
    for case, seen in one.each():
        if seen["error"]:
            raise Finding(
                "stopped by an error", f"It ended with {seen['error']}, with {about(case)}."
            )
    if all(seen["kind"] == "NoneType" for _, seen in one.each()):
        raise Finding(
            "nothing returned",
            "None came back; expected is a dictionary. Did you forget `return`?",
        )


def _look_at_shape(one: Trial) -> None:
    for case, seen in one.each():
        if seen["kind"] != "dict":
            raise Finding(
                "not a dictionary",
                f"A {seen['kind']} came back; expected is a dictionary with {', '.join(KEYS)}.",
            )
        if seen["lost"]:
            raise Finding("a key missing", f"Without {', '.join(seen['lost'])}: {about(case)}.")
        for key, value in seen["values"].items():
            if isinstance(value, str):
                raise Finding("not a number", f"`{key}` is {value}; expected is a number.")


def _look_at_inputs(one: Trial) -> None:
    if any(seen["changed"] for _, seen in one.each()):
        raise Finding("input changed", "Your function changed the case. Work on a copy.")


def _look_at_values(one: Trial) -> None:
    """Key by key in their order: a later one is often wrong because an earlier one is."""
    truths = [right(case) for case in one.cases]
    for report in one.reports:
        for key in KEYS:
            seen = [each["values"][key] for each in report["cases"]]
            wanted = [truth[key] for truth in truths]
            wrong = [k for k in range(len(seen)) if not same(seen[k], wanted[k])]
            if wrong:
                _refuse(key, seen, wrong, one.cases)


def _refuse(key: str, seen: list[float], wrong: list[int], cases: list[Case]) -> None:
    head = f"`{key}` is not right in {len(wrong)} of {len(seen)} drawn cases. "
    tail = f"You have {seen[wrong[0]]:.6g} for {about(cases[wrong[0]])}."
    for idea in IDEAS:
        if idea.key == key and all(map(same, seen, map(idea.gives, cases))):
            raise Finding(idea.name, f"{head}{idea.text} {tail}")
    raise Finding(f"{key} wrong", head + tail)


def same(seen: float, wanted: float) -> bool:
    return math.isclose(seen, wanted, rel_tol=CLOSE)


LOOKS = Looks(
    returned=_look_at_returned,
    shape=_look_at_shape,
    unchanged=_look_at_inputs,
    value=_look_at_values,
)
STREAMED_SPEED = Exercise(
    name="streamed_speed",
    title="Tokens per second against the batch",
    points=4,
    judge=judge_speed,
    when_right=(
        "All drawn cases are right. What a rank receives in a token step does not depend on the "
        "batch: up to the break-even a larger batch takes no more time, and after it stage 3 "
        "is as fast "
        "as a rank that has all the weights. Streaming is for many prompts and tensor parallelism "
        "for few: its ranks send activations, which grow with the batch."
    ),
    hints=(
        "Two times for a token step at stage 3: until the missing weights have arrived, and until "
        "the arithmetic is done. They run beside each other.",
        "The arithmetic itself is the longer of two: each weight read once from the rank's own "
        "memory, and two operations for each parameter and token of this forward.",
        "For tp, multiply the tokens by N and divide the weights by N; then add the all-reduces, "
        "each of tokens · hidden · item bytes, of which a ring moves 2(N−1)/N.",
        "Break-even: write down both times with an unknown batch, set them equal, and see what "
        "falls out of the equation. The next whole number up.",
    ),
)
