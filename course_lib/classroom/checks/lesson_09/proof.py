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
from course_lib.classroom.checks.words import Words
from course_lib.collectives.call import Group

SAYS = Words("""
nothing returned: Rank {rank} got None back {when}; every rank has to return True or False.
no verdict: Rank {rank} got a {got} back {when}; return True or False.
always true: Every optimizer passes, {when}: what could fail your test?
always false: No optimizer passes, and some are sharded, {when}. Does your one process start from
  the same weights, and does its loss take the mean over the rows of all ranks?
ranks disagree: Your ranks come to different verdicts on {divided} of {count} optimizers, {when}.
  Tell the others what one rank has seen: a verdict is an all-reduce.
whole states pass: One that does not shard: every rank has the moments of all elements, as in plain
  data parallelism. Right training says nothing about where the states are.
wrong training passes: One whose ranks all update the first shard, and no rank the others. Small
  states are no proof: compare the weights with those of one process.
agreement taken for training: One whose ranks update their shards by the gradient of their own rows.
  They agree on wrong weights: compare with one process that reads all rows.
never gathered: One that never gathers what the others have updated. Compare all parameters, on
  every rank.
one step: One that forgets its moments after each step: the first is right, later ones are not.
  Train several.
parameters averaged: One that averages parameters where gradients were meant, with moments of all
  elements.
one rank asked: One whose first rank holds little, and the others states of everything. Ask every
  rank, and let the ranks agree.
the sum of all ranks: One whose last rank holds all states and the others none. Together that is the
  whole once: look at the largest.
numel believed: One whose moments are views of memory for all elements. Count storages, not
  elements: `course_lib.memory.held` does.
more than two thirds pass: One whose last rank holds more than two thirds of the states' bytes that
  one process keeps.
counted too early: One whose states grow in the second step, to views of memory for all elements.
  Count when several steps are over.
loose comparison: One that gathers a parameter in float32: it is off by some 10⁻⁸, which is more
  than 10⁻⁹. `torch.allclose` has a relative tolerance of its own unless you set it.
not all weights compared: One whose losses are right, and its first and last parameter, and which
  forgets AdamW's decay where a gradient is zero. Compare all weights, not losses.
sums compared: One that has exchanged elements of a parameter: every sum, mean and norm is right.
  Compare element by element.
one rank compared: One whose last rank alone does not take over a parameter that another has
  updated. Compare on every rank.
uneven shards refused: One whose shards are uneven, since the ranks do not divide the parameters: a
  shard is the whole over n, rounded up, and step counters take a few bytes more.
owners refused: One that gives whole parameters to ranks, and to none more than two thirds of the
  states. (Count states alone, not parameters.)
another optimizer refused: One that is SGD with momentum, whose states are not Adam's. `box.whole`
  tells what one process keeps.
a sharded one refused: A plain ZeRO-1.
""")
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


PROOF = Exercise(
    name="is_sharded",
    title="Prove that it shards",
    points=4,
    judge=judge_proof,
    when_right=(
        "Your test passed all that train as one process and share out their states, evenly or not, "
        "and refused what only runs: replicas, states hidden in views, all of them on one rank, "
        "ranks that train on rows of their own, or one step alone that was right."
    ),
    hints=(
        "Two claims have to hold: it trains as one process does, and no rank keeps much more than "
        "an n-th of the states. What could be true of the one and false of the other?",
        "One process: a copy of `box.model` from before, `box.whole` of its parameters, and the "
        "mean of the losses of all ranks' rows. More than one step.",
        "`held(box.optimizer).by_kind['optimizer states']` counts storages. How much has one "
        "process? What of that may the *largest* rank have?",
        "In the end all ranks have to say the same: one rank's False makes all of them say False.",
    ),
)
