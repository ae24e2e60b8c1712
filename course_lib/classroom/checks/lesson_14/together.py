"""`generate_together` of lesson 14: prompts of unequal length, and a forward that needs all ranks.

An answer is held against each rank's own text, against the forwards that the longest one needs, and
against one small message for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_14 import together_trial as trial
from course_lib.classroom.checks.lesson_14.waiting import is_a_hang
from course_lib.classroom.checks.looking import THREE, TWO, Looks, fresh_seed
from course_lib.classroom.checks.words import Page

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
        when, "its prompt with the new tokens",
    )  # fmt: skip
    return Trial(reports, trial.prompts(len(reports), seed), when)


def _look_at_ends(one: Trial) -> None:
    """No rank asked for a forward when another had ended."""
    for row, rank, did in one.each():
        if did["alone"]:
            gone = " and ".join(f"rank {r}" for r in did["alone"])
            raise Finding(
                HANGS,
                f"Rank {rank} asks for forward {did['calls']}, and {gone} has ended, {one.when}. "
                "Here the check answers in its place; on a real machine rank "
                f"{rank} would wait in a gather until the time-out. A rank that has its text "
                f"({[p.forwards for p in row]} forwards are wanted, rank by rank) has to go on "
                "taking part until the last one has.",
            )


def _look_at_shape(one: Trial) -> None:
    for _, rank, did in one.each():
        if did["out"] is None:
            raise Finding(
                "not a list",
                f"Rank {rank} got a {did['kind']} back {one.when}; expected is a list of whole "
                "numbers: the prompt, and the new tokens after it.",
            )


def _look_at_inputs(one: Trial) -> None:
    for _, rank, did in one.each():
        if did["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed the prompt on rank {rank}, {one.when}. Work on a copy.",
            )


def _look_at_values(one: Trial) -> None:
    for row, rank, did in one.each():
        prompt, seen = row[rank], did["out"]
        wanted = prompt.wanted()
        if seen == wanted:
            continue
        head = f"On rank {rank}, {one.when}, {len(seen) - len(prompt.ids)} new tokens came back. "
        new = wanted[len(prompt.ids) :]
        if trial.STOP in prompt.ids and seen == prompt.ids:
            raise Finding(
                "a stop in the prompt",
                f"{head}Its prompt has a stop in it, which ended an earlier text. Only a new token "
                "that is the stop ends this one.",
            )
        if seen[: len(wanted)] == wanted:
            if wanted[-1] == trial.STOP and prompt.forwards:
                raise Finding(
                    "tokens after the stop",
                    f"{head}The text had met the stop before. What a rank computes only so that "
                    "the others can go on is dropped.",
                )
            raise Finding(
                "more than was asked for",
                f"{head}It was asked for {prompt.most} at most. What a rank computes only so that "
                "the others can go on is dropped.",
            )
        if did["calls"] < prompt.forwards:
            raise Finding(
                "cut short",
                f"{head}The text is neither at its stop nor at its limit: did this rank end with "
                "the first one that had finished?",
            )
        if seen == prompt.ids + [i for i in new if i != trial.STOP]:
            raise Finding("the stop left out", f"{head}The stop is the text's last token.")
        if seen == new:
            raise Finding("prompt left out", f"{head}The prompt comes first, then what is new.")
        raise Finding(
            "another text",
            f"{head}They are not what the model makes of this rank's own prompt. Did a token that "
            "was to be thrown away go on into the next forward's text?",
        )


def _look_at_traffic(one: Trial) -> None:
    for row, rank, did in one.each():
        due = max(prompt.forwards for prompt in row)
        head = f"The texts are right. Rank {rank} makes {did['calls']} forwards {one.when}, "
        if did["calls"] > due:
            raise Finding(
                "on to the limit",
                f"{head}and the longest text needs {due}. A forward that no rank needs gathers all "
                "weights for nothing: end when the last rank has its text.",
            )
        if did["others"] > due + 1:
            raise Finding(
                "many messages",
                f"{head}and {did['others']} messages beside them. One for each forward says "
                "whether any rank goes on.",
            )
        spare = did["bytes"] - (did["calls"] * 4 * (one.n - 1))
        if spare > (due + 1) * SMALL * (one.n - 1):
            raise Finding(
                "texts sent",
                f"{head}and sends {spare} bytes beside them. Whether a rank goes on is one flag; "
                "its text concerns no other rank.",
            )


LOOKS = Looks(
    returned=_look_at_ends,
    shape=_look_at_shape,
    unchanged=_look_at_inputs,
    value=_look_at_values,
    traffic=_look_at_traffic,
)
GENERATE_TOGETHER = Exercise(judge=judge_together, **Page("lesson_14/generate_together").about)
