"""`generate_together` of lesson 14: prompts of unequal length, and a forward that needs all ranks.

An answer is held against each rank's own text, against the forwards that the longest one needs, and
against one small message for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from course_lib.classroom import agreement
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_14 import together_trial as trial
from course_lib.classroom.checks.looking import THREE, TWO, Looks, fresh_seed
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_14/generate_together")

SMALL = 64  # bytes that a rank may send beside the forwards, for each of them


class Trial(NamedTuple):
    reports: list[dict]
    prompts: list[list[trial.Prompt]]
    when: str

    @property
    def n(self) -> int:
        return len(self.reports)

    def each(self) -> Iterator[tuple[list[trial.Prompt], int, dict]]:
        """(the case's prompts, rank, what that rank did), case by case."""
        for case, row in enumerate(self.prompts):
            for rank, report in enumerate(self.reports):
                if case < len(report["cases"]):
                    yield row, rank, report["cases"][case]


def judge_together(answer: Answer, judge: Judge) -> None:
    """Try generate_together; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    LOOKS.at(answer, (_tried(answer, judge, members, seed) for members in (THREE, TWO)))


def _tried(answer: Answer, judge: Judge, members: list[int], seed: int) -> Trial:
    when = on(members)
    try:
        reports = judge.trial(answer, trial.run, seed, members=members, when=when)
    except Finding as finding:
        SAYS.refuse({"a rank stops early #1": finding.hangs}, when=when, text=finding.text)
        raise
    refuse_none(
        [{"kind": "" if r["cases"][-1]["alone"] else r["kind"]} for r in reports],
        when,
        "its prompt with the new tokens",
    )
    return Trial(reports, trial.prompts(len(reports), seed), when)


def _look_at_ends(one: Trial) -> None:
    """No rank asked for a forward when another had ended."""
    for row, rank, did in one.each():
        gone = agreement.said_of(did["alone"] or [rank], "has ended")
        about = {"calls": did["calls"], "wanted": [prompt.forwards for prompt in row]}
        looks = {"a rank stops early #2": did["alone"]}
        SAYS.refuse(looks, rank=rank, gone=gone, when=one.when, **about)


def _look_at_shape(one: Trial) -> None:
    for entry, key, odd in (("not a list", "out", None), ("input changed", "changed", True)):
        for _, rank, did in one.each():
            SAYS.refuse({entry: did[key] is odd}, rank=rank, kind=did["kind"], when=one.when)


def _look_at_values(one: Trial) -> None:
    for row, rank, did in one.each():
        prompt, seen = row[rank], did["out"]
        wanted = prompt.wanted()
        new, longer = wanted[len(prompt.ids) :], seen[: len(wanted)] == wanted
        looks = {
            "a stop in the prompt": trial.STOP in prompt.ids and seen == prompt.ids,
            "tokens after the stop": longer and wanted[-1] == trial.STOP and prompt.forwards,
            "more than was asked for": longer,
            "cut short": did["calls"] < prompt.forwards,
            "the stop left out": seen == prompt.ids + [i for i in new if i != trial.STOP],
            "prompt left out": seen == new,
            "another text": True,
        }
        if seen != wanted:
            count = len(seen) - len(prompt.ids)
            head = f"On rank {rank}, {one.when}, {count} new tokens came back. "
            SAYS.refuse(looks, head=head, most=prompt.most)


def _look_at_traffic(one: Trial) -> None:
    for row, rank, did in one.each():
        due = max(prompt.forwards for prompt in row)
        spare = did["bytes"] - (did["calls"] * 4 * (one.n - 1))
        looks = {
            "on to the limit": did["calls"] > due,
            "many messages": did["others"] > due + 1,
            "texts sent": spare > (due + 1) * SMALL * (one.n - 1),
        }
        forwards = agreement.counted(did["calls"], "forward")
        head = f"The texts are right. Rank {rank} makes {forwards} {one.when}, "
        SAYS.refuse(looks, head=head, due=due, others=did["others"], spare=spare)


LOOKS = Looks(
    returned=_look_at_ends,
    shape=_look_at_shape,
    value=_look_at_values,
    traffic=_look_at_traffic,
)
GENERATE_TOGETHER = Exercise(judge=judge_together, **SAYS.about)
