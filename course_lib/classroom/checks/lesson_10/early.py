"""`reduce_early` of lesson 10: buckets that leave under the backward, within bytes and memory.

Shards are held against one process that has all rows; the ledger says when which bucket left, and
the watch how much was alive meanwhile: right and not cut is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_09.each import refuse_each
from course_lib.classroom.checks.lesson_10 import early_trial as trial
from course_lib.classroom.checks.lesson_10.cuts import Gradients, bucket, padded, shards
from course_lib.classroom.checks.looking import ITEM, THREE, TWO, fresh_seed
from course_lib.classroom.checks.words import Page

WHOLE = {"all_reduce", "all_gather"}
SAYS = Page("lesson_10/reduce_early")


def judge_early(answer: Answer, judge: Judge) -> None:
    """Two backwards on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    for members, sizes in ((THREE, (29 + seed % 5, 1900)), (TWO, (31 + seed % 4, 2101))):
        when, told = on(members), (*sizes, seed)
        every = judge.trial(answer, trial.train, *told, members=members, when=when)
        for k, step in enumerate(trial.steps(*told, len(members))):
            reports, where = [of_rank[k] for of_rank in every], f"{when}, in backward {k + 1}"
            look_at_results(reports, step, k, where)
            look_at_traffic(reports, step, where)
            look_at_what_is_left(reports, step, where)
        spoiled = {"one buffer reused #2": lambda one: one["spoiled"]}
        refuse_each(SAYS, [of_rank[-1] for of_rank in every], spoiled, where=when)


def look_at_results(reports: list[dict], step: trial.Step, number: int, where: str) -> None:
    """The idea that explains all ranks' shards, where they are not right."""
    n, seen = len(reports), [one["pieces"] for one in reports]
    right = pieces(step.sums(), trial.plan(step.parameters[::-1], step.most), n)
    if None not in seen and looking.all_near([*chain(*seen)], [*chain(*right)]):
        return
    refuse_none(reports, where, "a list with a shard of each bucket")
    form = {
        "no backward": lambda one: one["came"] < len(step.parameters),
        "not a list": lambda one: one["pieces"] is None,
    }
    refuse_each(SAYS, reports, form, parameters=len(step.parameters), where=where)
    known = ((entry, [*chain(*gives)]) for entry, gives in ideas_of_pieces(step, n))
    head = "The shards are not those of the sum over the ranks. "
    looking.refuse_idea([*chain(*seen)], looking.ideas(SAYS, known), where, head)
    known = all(
        any(looking.near(x, y) for y in right[r]) for r, own in enumerate(seen) for x in own
    )
    cut = [x.shape for x in right[0]]
    cut = [x.shape for x in right[0]]
    rest = {
        "buckets that never left": lambda one: known and one["count"] < len(right[0]),
        "another order of leaving #1": lambda one: known and one["count"] == len(right[0]),
        "one buffer reused #1": lambda one: one["overlap"],
        "kept between calls": lambda one: number,
        "other buckets": lambda one: [x.shape for x in one["pieces"]] != cut,
        "rounded on the way": lambda one: any(x.dtype != torch.float64 for x in one["pieces"]),
        "wrong shards": lambda one: True,
    }
    refuse_each(SAYS, reports, rest, where=where)


def pieces(of: Gradients, cut: list, n: int, each: bool = False) -> list[list[Tensor]]:
    """Of every rank, its piece of each bucket."""
    every = [shards(bucket(of, one, n, each), n) for one in cut]
    return [[of_bucket[rank] for of_bucket in every] for rank in range(n)]


def ideas_of_pieces(step: trial.Step, n: int) -> Iterator[tuple[str, list[list[Tensor]]]]:
    """What each rank would return under each wrong idea."""
    order, most, sums = step.parameters[::-1], step.most, step.sums()
    cut, forwards = trial.plan(order, most), trial.plan(order[::-1], most)
    right, lengths = pieces(sums, cut, n), [sum(p.numel() for p in b) for b in cut]
    own = [pieces(mine, cut, n)[rank] for rank, mine in enumerate(step.each)]
    raw = [bucket(sums, one, 1) for one in cut]
    yield "a mean", [[x / n for x in one] for one in right]
    yield "not summed", own
    yield "not summed", [[x * n for x in one] for one in own]
    for entry, other in (
        ("filled from the first parameter", forwards),
        ("filled from the first parameter", forwards[::-1]),
        ("turned inside", [one[::-1] for one in cut]),
        ("the list turned", cut[::-1]),
        ("a bucket for each parameter", [[p] for p in order]),
        ("one bucket for all", [order]),
        ("exactly full", trial.plan(order, most - 1)),
    ):
        yield entry, pieces(sums, other, n)
    yield "not cut", [[bucket(sums, one, n) for one in cut]] * n
    yield "everybody's first piece", right[:1] * n
    yield "padded one by one", pieces(sums, cut, n, each=True)
    for entry, flats in (
        ("padded in front", [padded(x, n, front=True) for x in raw]),
        ("padded without need", [F.pad(x, (0, n - len(x) % n)) for x in raw]),
    ):
        yield entry, [[shards(x, n)[rank] for x in flats] for rank in range(n)]
    ends = [[x[: max(0, k - rank * len(x))] for x, k in zip(one, lengths, strict=True)]
            for rank, one in enumerate(right)]  # fmt: skip
    yield "padding taken off", ends


def look_at_traffic(reports: list[dict], step: trial.Step, where: str) -> None:
    """Each bucket once, as a reduce-scatter, in the order of the list, under the backward."""
    wanted, n = step.padded(), len(reports)
    must = sum(wanted) * (n - 1) // n * ITEM
    looks = {
        "all-reduce, then cut": lambda one: not one["sent"] and WHOLE & set(one["verbs"]),
        "sent after the backward": lambda one: one["late"],
        "another order of leaving #2": lambda one: (
            one["sent"] != wanted and sorted(one["sent"]) == sorted(wanted)
        ),
        "other messages": lambda one: one["sent"] != wanted or one["bytes"] > must + 1,
    }
    refuse_each(SAYS, reports, looks, must=must, buckets=len(wanted), where=where)


def look_at_what_is_left(reports: list[dict], step: trial.Step, where: str) -> None:
    """The shards and a few buckets: never all gradients at once, and no buffer under a shard."""
    shard, allowed = step.shard(), step.allowed()
    looks = {
        "a view of the whole": lambda one: one["held"] > shard + step.most * ITEM,
        "too much at once": lambda one: one["alive"] > allowed,
        "input changed": lambda one: one["changed"],
        "gradients left": lambda one: one["left"],
        "hooks left": lambda one: one["hooked"],
    }
    whole = sum(p.numel() for p in step.parameters) * ITEM
    refuse_each(SAYS, reports, looks, shard=shard, allowed=allowed, whole=whole, where=where)


EARLY = Exercise(judge=judge_early, **SAYS.about)
