"""`two_collectives` of lesson 07: losses with a history, for two small all-reduces and no more.

Held against one process in values, in gradients taken twice, in three steps; and against a budget
of messages, of bytes, and of what stays alive between forward and backward.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, refuse_none
from course_lib.classroom.checks.lesson_07 import looks
from course_lib.classroom.checks.lesson_07.by_hand import KINDS
from course_lib.classroom.checks.lesson_07.ideas import of_the_gradient, of_the_loss
from course_lib.classroom.checks.lesson_07.looks import Trial, refuse
from course_lib.classroom.checks.lesson_07.trial import TOKENS, Plan
from course_lib.classroom.checks.looking import ITEM, Looks, counted, near
from course_lib.classroom.checks.words import Page
from course_lib.ledger import forms

KEPT = 9  # numbers a token that may be kept beside a shard of logits
SAYS = Page("lesson_07/two_collectives")


def plans(seed: int, v: int) -> list[tuple[list[int], Plan]]:
    return [(members, Plan(seed, TOKENS, v, v, kind, mean=False)) for members, kind in KINDS]


def judge_two(answer: Answer, judge: Judge) -> None:
    """Try two_collectives on shards far wider than a few numbers a token."""
    LOOKS.at(answer, looks.tried(answer, judge, plans, None, wide=3))


def _look_at_shape(one: Trial) -> None:
    wanted = [one.case.plan.tokens]
    refuse(SAYS, "wrong shape", one, lambda r: r["loss"] is None, wanted=wanted)


def _look_at_gradients(one: Trial) -> None:
    """There is a way back, it is right, and it can be gone twice."""
    refuse(SAYS, "no way back", one, lambda r: r["gradient"] is None)
    looks.look_at_gradient(one, of_the_gradient)
    refuse(SAYS, "second backward", one, lambda r: not near(r["again"], r["gradient"]))
    refuse(SAYS, "another use in between", one, lambda r: not near(r["later"], r["gradient"]))


def _look_at_messages(one: Trial) -> None:
    fair = 3 * forms.all_reduce(one.case.n, one.case.plan.tokens * ITEM)
    refuse(SAYS, "a message in the backward", one, lambda r: r["back"])
    looks.refuse_logits_on_the_way(one, fair)
    for rank, report in enumerate(one.reports):
        ops, exact = report["ops"], report["bytes"] == fair
        if ops == {"all_reduce": 2} and exact:
            continue
        reasons = {
            "three messages": ops == {"all_reduce": 3} and exact,
            "gathered, then reduced": "all_gather" in ops,
            "more than three numbers": ops == {"all_reduce": 2},
            "over budget": True,
        }
        head = (
            f"The values are right. Rank {rank} sends {counted(ops)} and {report['bytes']} bytes "
            f"{one.when}; the budget is 2 all_reduce and {fair:g} bytes."
        )
        raise SAYS(next(entry for entry, met in reasons.items() if met), head=head)


def _look_at_memory(one: Trial) -> None:
    tokens, (a, z) = one.case.plan.tokens, one.case.spans[0]
    fair = tokens * (z - a + KEPT) * ITEM
    shard = tokens * (z - a) * ITEM
    refuse(SAYS, "keeps too much", one, lambda r: r["held"] > fair, shard=shard)
    looks.look_at_largest(one)


LOOKS = Looks(
    returned=lambda one: refuse_none(one.reports, one.when, "one loss for each token"),
    shape=_look_at_shape,
    unchanged=looks.look_at_inputs,
    value=lambda one: looks.look_at_loss(one, of_the_loss),
    gradients=_look_at_gradients,
    traffic=_look_at_messages,
    memory=_look_at_memory,
    later_steps=looks.look_at_steps,
)
TWO_COLLECTIVES = Exercise(judge=judge_two, **SAYS.about)
