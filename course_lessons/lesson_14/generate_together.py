"""`generate_together` of lesson 14: prompts of unequal length, and a forward that needs all ranks.

An answer is held against each rank's own text, against the forwards that the longest one needs, and
against one small message for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from course_classroom.judge import bench
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.looking import THREE, TWO, Looks, fresh_seed
from course_classroom.judge.words import Page
from course_classroom.ranks import agreement
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group

SAYS = Page(__file__, "generate_together")

SMALL = 64  # bytes that a rank may send beside the forwards, for each of them


# ---- what runs on the judge's ranks: one whose answer has returned goes on to answer the others'
# gathers and says that it has left, so that what would hang ends in a note in milliseconds
STOP, WORDS = 1000, 50  # the stop is no small number: each is an object of its own
CASES, LIMITED, NOTHING = 5, 2, 4
ENDLESS = 60  # forwards of one call: far more than any rank may ask for


class Prompt(NamedTuple):
    """What one rank is asked for, of a model that makes STOP its `length`-th new token."""

    ids: list[int]
    most: int  # new tokens that are asked for
    length: int
    seed: int  # of its own continuation

    @property
    def forwards(self) -> int:
        return min(self.most, self.length)

    def next(self, ids: list[int]) -> int:
        """The model's token after `ids`."""
        if len(ids) - len(self.ids) == self.length - 1:
            return int(str(STOP))
        return 1 + (self.seed + 7 * sum(ids) + 13 * len(ids)) % (WORDS - 1)

    def wanted(self) -> list[int]:
        ids = list(self.ids)
        for _ in range(self.forwards):
            ids.append(self.next(ids))
        return ids


def prompts(n: int, seed: int) -> list[list[Prompt]]:
    """[case][rank]: another rank is the longest in each case, up to its stop or, in every second
    one, up to its limit. In the first two the others meet their stop, then their limit, then they
    want nothing; in the last no rank wants anything. Prompts may have stops in them, at the end
    too."""
    r, made = Random(seed), []
    for case in range(CASES):
        row: list[Prompt] = []
        for rank in range(n):
            longest = rank == (case + seed) % n
            length = r.randint(8, 11) if longest else r.randint(2, 5)
            most = length + r.randint(1, 9)
            if longest and case % 2:
                most, length = length - 1, 11
            if not longest and case >= LIMITED:
                most = r.randint(1, length - 1) if case == LIMITED else 0
            ids = [r.randint(1, WORDS - 1) for _ in range(r.randint(1, 6))]
            if (case + rank) % 2:
                ids += r.choice(([STOP], [STOP, r.randint(1, WORDS - 1), STOP]))
            most = 0 if case == NOTHING else most
            row.append(Prompt(ids, most, length, r.randint(1, 9999)))
        made.append(row)
    return made


class Left(Exception):
    """A rank asked for a forward, and another one had ended."""


class Forward:
    """`forward(ids)`: the token after ids, of a model whose weights come by a gather."""

    def __init__(self, prompt: Prompt, group: Group):
        self.prompt, self.group = prompt, group
        self.calls, self.alone = 0, []  # alone: the ranks that had ended at this one's last call

    def __call__(self, ids: list[int]) -> int:
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            raise TypeError("forward takes a list of whole numbers with at least one in it")
        self.calls += 1
        if self.calls > ENDLESS:
            raise RuntimeError(f"{ENDLESS} forwards, and no rank is asked for so many")
        self.alone = [rank for rank, here in enumerate(self._gather(True)) if not here]
        if self.alone:
            raise Left(f"ranks {self.alone} have ended")
        return self.prompt.next(ids)

    def rest(self) -> None:
        """This rank has ended: answer what the others still ask for, until all have."""
        while any(self._gather(False)):
            pass

    def _gather(self, here: bool) -> list[float]:
        return all_gather(torch.tensor([float(here)]), self.group).tolist()


def run(function: Callable, group: Group, seed: int) -> dict:
    """Each case of a seed, with fresh prompts on every rank, until one asks for a forward alone."""
    reports: list[dict] = []
    for row in prompts(group.size(), seed):
        own = row[group.rank()]
        forward, given, out = Forward(own, group), list(own.ids), None
        answered = partial(function, given, forward, own.most, STOP, group)
        facts: dict = {"ops": {}, "bytes": 0}
        with suppress(Left):
            out, facts = bench.watched(answered)
        tokens = isinstance(out, list) and all(type(i) is int for i in out)
        shape = f" of shape {list(out.shape)}" if isinstance(out, Tensor) else ""
        gathers = min(facts["ops"].get("all_gather", 0), forward.calls)
        report = {
            "kind": type(out).__name__ + shape,
            "out": list(out) if tokens else None,
            "changed": given != own.ids,
            "calls": forward.calls,
            "alone": forward.alone,
            "others": sum(facts["ops"].values()) - gathers,
            "bytes": facts["bytes"],
        }
        reports.append(report)
        forward.rest()
        if any(all_gather(torch.tensor([float(bool(forward.alone))]), group).tolist()):
            break
    return {"kind": "" if reports[-1]["alone"] else reports[-1]["kind"], "cases": reports}


# ---- what is said of it
class Trial(NamedTuple):
    reports: list[dict]
    prompts: list[list[Prompt]]
    when: str

    @property
    def n(self) -> int:
        return len(self.reports)

    def each(self) -> Iterator[tuple[list[Prompt], int, dict]]:
        """(the case's prompts, rank, what that rank did), case by case."""
        for case, row in enumerate(self.prompts):
            for rank, report in enumerate(self.reports):
                if case < len(report["cases"]):
                    yield row, rank, report["cases"][case]


def judge_together(answer: Answer, judge: Judge) -> None:
    """Try generate_together; raise the Finding that explains best what is wrong."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    LOOKS.at(answer, (_tried(answer, judge, members, seed) for members in (THREE, TWO)))


def _tried(answer: Answer, judge: Judge, members: list[int], seed: int) -> Trial:
    when = on(members)
    try:
        reports = judge.trial(answer, run, seed, members=members, when=when)
    except Finding as finding:
        SAYS.refuse({"a rank stops early #1": finding.hangs}, when=when, text=finding.text)
        raise
    refuse_none(reports, when, "its prompt with the new tokens")
    return Trial(reports, prompts(len(reports), seed), when)


def _look_at_ends(one: Trial) -> None:
    """No rank asked for a forward when another had ended."""
    for row, rank, did in one.each():
        gone = agreement.said_of(did["alone"] or [rank], "has ended")
        about = {"calls": did["calls"], "wanted": [prompt.forwards for prompt in row]}
        looks = {"a rank stops early #2": did["alone"]}
        SAYS.refuse(looks, rank=rank, gone=gone, when=one.when, **about)


def _look_at_shape(one: Trial) -> None:
    for _, rank, did in one.each():
        looks = {"not a list": did["out"] is None, "input changed": did["changed"]}
        SAYS.refuse(looks, rank=rank, kind=did["kind"], when=one.when)


def _look_at_values(one: Trial) -> None:
    for row, rank, did in one.each():
        prompt, seen = row[rank], did["out"]
        wanted = prompt.wanted()
        new, longer = wanted[len(prompt.ids) :], seen[: len(wanted)] == wanted
        looks = {
            "a stop in the prompt": STOP in prompt.ids and seen == prompt.ids,
            "tokens after the stop": longer and wanted[-1] == STOP and prompt.forwards,
            "more than was asked for": longer,
            "cut short": did["calls"] < prompt.forwards,
            "the stop left out": seen == prompt.ids + [i for i in new if i != STOP],
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
