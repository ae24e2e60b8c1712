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
from course_lib.classroom.checks.words import Words

WHOLE = {"all_reduce", "all_gather"}
SAYS = Words("""
no backward: On rank {rank} {came} of {parameters} gradients came {where}. The function is to call
  loss.backward().
not a list: Rank {rank} got a {kind} back {where}; expected is a list of tensors, one for each
  bucket in the order of leaving.
a mean: They are divided by the number of ranks; the sum was asked for.
not summed: Each rank has a piece of its own gradient, once or n times, without the others' part.
filled from the first parameter: The buckets were filled from the first parameter on, and maybe
  turned round. The first gradients are those of the last layer: begin there.
turned inside: Inside of each bucket the parameters are in the order of the model. Asked for is the
  order in which they were put in, the last one first.
the list turned: All shards are right, and the list has the last bucket that left at its front.
not cut: Every rank returns whole buckets. Right, and not sharded: keep your piece.
everybody's first piece: Every rank has the piece of the group's first rank.
a bucket for each parameter: Each parameter went by itself. `most` elements fit in a bucket: fill
  it.
one bucket for all: Everything is in one bucket, full when the backward is over. `most` elements
  fit.
exactly full: A parameter was not put into a bucket that it fills exactly: a bucket is closed when
  it would be *longer* than `most`.
padded one by one: Each parameter was padded by itself. A bucket is padded once, at its end.
padded in front: The zeros are to stand at the end of a bucket.
padded without need: Where the ranks divide a bucket's length, zeros were put in all the same.
padding taken off: The pieces end before their padding, which is a part of them: all ranks' pieces
  of a bucket are equally long.
another order of leaving #1: All shards are right, and the buckets left in another order {where}. A
  bucket that is complete waits until those before it have left.
another order of leaving #2: The shards are right. Rank {rank} returns them in order, and sent them
  in another {where}. A bucket that is complete waits until those before it have left.
buckets that never left: The shards that rank {rank} returned {where} are right, and some buckets
  never left. One gradient may complete several at once, when they have waited for the one before
  them.
one buffer reused #1: Some shards on rank {rank} lie in the same memory {where}: a later bucket was
  written over an earlier one.
one buffer reused #2: The second backward has written over what the first one returned on rank
  {rank}, {where}. Each call returns shards of its own.
kept between calls: The first backward was right, and this one is not, {where}. Does your function
  keep something between calls, such as a list that is a default argument?
other buckets: Rank {rank} returned {count} shards {where}, of other buckets. One takes parameters
  as long as it holds no more than `most` elements with them; a longer one is alone.
rounded on the way: The shards of rank {rank} are not of dtype float64 {where}, and the gradients
  are. Keep their dtype.
wrong shards: The shards are not those of the sum over the ranks {where}.
all-reduce, then cut: The shards are right. Rank {rank} gets every sum whole {where} and throws away
  what is not its piece: twice the bytes of a reduce-scatter.
sent after the backward: The shards are right. Rank {rank} sent {late} of {count} buckets after the
  backward {where}, when every gradient is in memory at once. A function that torch calls as each
  gradient comes can send earlier.
other messages: The shards are right. Rank {rank} sent {bytes} bytes in {messages} messages {where};
  each bucket once is {must} bytes in {buckets}.
a view of the whole: The shards on rank {rank} are right, {shard} bytes, and their storages have
  {held} {where}: they are views of whole buckets, which stay alive.
too much at once: Rank {rank} held up to {alive} bytes of gradients {where}; all of them are
  {whole}, its shards {shard}, the budget {allowed}. What has been sent is to be forgotten: the
  parameters' .grad, and messages that are never waited for.
input changed: Your function changed the list `parameters` on rank {rank}, {where}. Make one of your
  own.
gradients left: Rank {rank} still has a gradient in {left} parameters {where}; the next would be
  added to it.
hooks left: {hooked} parameters on rank {rank} still had your hooks {where}, for the next backward
  to call. Take them off: `handle.remove()`.
""")


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


EARLY = Exercise(
    name="reduce_early",
    title="Buckets in reverse order",
    points=4,
    judge=judge_early,
    when_right=(
        "On three ranks and on two, in two backwards, each shard is the sum of one process; every "
        "bucket left once, in order, while the backward was still under way; and at no moment did "
        "a rank hold more of the gradients than its shards and a few buckets."
    ),
    hints=(
        "First make the plan, before the backward: which parameters share a bucket? Then you know "
        "for each gradient that comes which bucket it belongs to.",
        "`parameter.register_post_accumulate_grad_hook(f)` has torch call f(parameter) when "
        "parameter.grad is complete. Count what has come; when a bucket is complete, send it from "
        "there.",
        "Gradients inside a layer may come in another order than yours. Send a bucket when it is "
        "complete and all before it have gone, so that all ranks send in one order.",
        "After sending, `parameter.grad = None` lets go of the whole gradient; what stays is the "
        "piece that the reduce-scatter gave you.",
    ),
)
