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
from course_lib.classroom.checks.lesson_14.waiting import is_a_hang
from course_lib.classroom.checks.looking import THREE, TWO, Looks, fresh_seed
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_14/generate_together")

HANGS = "a rank stops early"
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
        if not is_a_hang(finding):
            raise
        raise Finding(
            HANGS,
            f"A rank waits for others that do not come, {when}: in a message of your own, or in a "
            "forward that not all ranks make. (A rank that has ended answers in the check's own "
            "call.) Every rank has to leave the loop after the same round, the rank without a "
            f"wish too.\n{finding.text}",
        ) from None
    refuse_none(
        [{"kind": "" if r["cases"][-1]["alone"] else r["kind"]} for r in reports],
        when,
        "its prompt with the new tokens",
    )
    return Trial(reports, trial.prompts(len(reports), seed), when)


def _look_at_ends(one: Trial) -> None:
    """No rank asked for a forward when another had ended."""
    for row, rank, did in one.each():
        if did["alone"]:
            gone = agreement.said_of(did["alone"], "has ended")
            raise Finding(
                HANGS,
                f"Rank {rank} asks for forward {did['calls']}, and {gone}, {one.when}. "
                "Here the check answers in its place; on a real machine rank "
                f"{rank} would wait in a gather until the time-out. A rank that has its text "
                f"({[p.forwards for p in row]} forwards are wanted, rank by rank) has to go on "
                "taking part until the last one has.",
            )


def _look_at_shape(one: Trial) -> None:
    for _, rank, did in one.each():
        if did["out"] is None:
            raise SAYS("not a list", rank=rank, kind=did["kind"], when=one.when)


def _look_at_inputs(one: Trial) -> None:
    for _, rank, did in one.each():
        if did["changed"]:
            raise SAYS("input changed", rank=rank, when=one.when)


def _look_at_values(one: Trial) -> None:
    for row, rank, did in one.each():
        prompt, seen = row[rank], did["out"]
        wanted = prompt.wanted()
        if seen == wanted:
            continue
        head = f"On rank {rank}, {one.when}, {len(seen) - len(prompt.ids)} new tokens came back. "
        new = wanted[len(prompt.ids) :]
        if trial.STOP in prompt.ids and seen == prompt.ids:
            raise SAYS("a stop in the prompt", head=head)
        if seen[: len(wanted)] == wanted:
            if wanted[-1] == trial.STOP and prompt.forwards:
                raise SAYS("tokens after the stop", head=head)
            raise SAYS("more than was asked for", head=head, most=prompt.most)
        if did["calls"] < prompt.forwards:
            raise SAYS("cut short", head=head)
        if seen == prompt.ids + [i for i in new if i != trial.STOP]:
            raise SAYS("the stop left out", head=head)
        if seen == new:
            raise SAYS("prompt left out", head=head)
        raise SAYS("another text", head=head)


def _look_at_traffic(one: Trial) -> None:
    for row, rank, did in one.each():
        due = max(prompt.forwards for prompt in row)
        forwards = agreement.counted(did["calls"], "forward")
        head = f"The texts are right. Rank {rank} makes {forwards} {one.when}, "
        if did["calls"] > due:
            raise SAYS("on to the limit", head=head, due=due)
        if did["others"] > due + 1:
            raise SAYS("many messages", head=head, others=did["others"])
        spare = did["bytes"] - (did["calls"] * 4 * (one.n - 1))
        if spare > (due + 1) * SMALL * (one.n - 1):
            raise SAYS("texts sent", head=head, spare=spare)


LOOKS = Looks(
    returned=_look_at_ends,
    shape=_look_at_shape,
    unchanged=_look_at_inputs,
    value=_look_at_values,
    traffic=_look_at_traffic,
)
GENERATE_TOGETHER = Exercise(judge=judge_together, **SAYS.about)
