"""`is_sharded` of lesson 09: a test that tells sharded optimizers from those that only run.

The answer is tried on one box after another; what it lets pass says what it has not looked at.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_09 import each
from course_lib.classroom.checks.lesson_09.each import refuse_each, value_of
from course_lib.classroom.checks.lesson_09.proof_boxes import Box
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed
from course_lib.classroom.checks.words import Page
from course_lib.collectives.call import Group

SAYS = Page("lesson_09/is_sharded")
# What to say where a kind of box passes that should not. The first that fits counts: put first what
# explains most.
PASSED = {
    "replicas": "whole states pass",
    "one shard": "wrong training passes",
    "own rows": "agreement taken for training",
    "never gathered": "never gathered",
    "forgets": "one step",
    "parameters averaged": "parameters averaged",
    "whole on the others": "one rank asked",
    "all on the last": "the sum of all ranks",
    "views of the whole": "numel believed",
    "above": "more than two thirds pass",
    "whole later": "counted too early",
    "idle": "not all weights compared",
    "exchanged": "sums compared",
    "rounded": "loose comparison",
    "one rank old": "one rank compared",
}
REFUSED = {
    "uneven": "uneven shards refused",
    "owners": "owners refused",
    "momentum": "another optimizer refused",
    "even": "a sharded one refused",
}
# What two ranks are asked about; three are asked about everything.
OF_TWO = (*REFUSED, "replicas", "all on the last", "own rows", "never gathered", "forgets")


def ask(function: Callable, group: Group, seed: int) -> dict:
    """The verdict on each box, in an order that is no pattern and the same on all ranks."""
    kinds = OF_TWO if group.size() == len(TWO) else (*REFUSED, *PASSED)
    made = torch.Generator().manual_seed(seed)
    verdicts = {}
    for number in torch.randperm(len(kinds), generator=made).tolist():
        box = Box(kinds[number], seed + number, group)
        out, _ = bench.watched(lambda box=box: function(box, group))
        verdict = value_of(out)
        verdicts[kinds[number]] = verdict if isinstance(verdict, bool) else bench.kind(out)
    return verdicts


def judge_proof(answer: Answer, judge: Judge) -> None:
    """Every box on three ranks, then half of them on two that are not the notebook's first two."""
    judge.take(answer, __name__, each.__name__)
    seed = fresh_seed() % 2**16
    for members in (THREE, TWO):
        when = on(members)
        reports = judge.trial(answer, ask, seed, members=members, when=when)
        verdicts = {kind: [report[kind] for report in reports] for kind in reports[0]}
        if all(set(said) == {kind in REFUSED} for kind, said in verdicts.items()):
            continue
        for said in verdicts.values():
            looks = {
                "nothing returned": lambda one: one["got"] == "NoneType",
                "no verdict": lambda one: not isinstance(one["got"], bool),
            }
            refuse_each(SAYS, [{"got": got} for got in said], looks, when=when)
        _refuse({kind: set(said) for kind, said in verdicts.items()}, when)


def _refuse(verdicts: dict[str, set[bool]], when: str) -> None:
    for entry, verdict in (("always true", True), ("always false", False)):
        if all(said == {verdict} for said in verdicts.values()):
            raise SAYS(entry, when=when)
    wrong = [kind for kind, said in verdicts.items() if said != {kind in REFUSED}]
    divided = [kind for kind in wrong if len(verdicts[kind]) > 1]
    if divided != wrong:
        for kinds, verdict, what in (
            (PASSED, True, "lets something pass"),
            (REFUSED, False, "refuses something that is sharded"),
        ):
            for kind, entry in kinds.items():
                if verdicts.get(kind) == {verdict}:
                    name, text = SAYS.of(entry)
                    raise Finding(name, f"Your test {what}, {when}. {text}")
    raise SAYS("ranks disagree", divided=len(divided), count=len(verdicts), when=when)


PROOF = Exercise(judge=judge_proof, **SAYS.about)
