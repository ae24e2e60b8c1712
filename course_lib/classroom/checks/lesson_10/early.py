"""`reduce_early` of lesson 10: buckets that leave under the backward, within bytes and memory.

The shards are held against one process that has all rows; the ledger says when which bucket left,
and the watch how much was alive meanwhile: right and not cut is refused.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_10 import early_trial as trial

IDEAS = {
    "a mean": ("a mean", "They are divided by the number of ranks; the sum was asked for."),
    "its own": (
        "not summed",
        "Each rank has a piece of its own gradient, without the others' part.",
    ),
    "its own, n times": ("not summed", "Each rank has its own gradient n times over."),
    "filled from the first": (
        "filled from the first parameter",
        "The buckets were filled from the first parameter on. The first gradients that come are "
        "those of the last layer: begin there.",
    ),
    "filled from the first, turned": (
        "filled from the first parameter",
        "The buckets were filled from the first parameter on and then turned round, so they are "
        "cut at other places. Fill them from the last parameter.",
    ),
    "turned inside": (
        "turned inside",
        "The buckets are right, and inside of each the parameters are in the order of the model. "
        "Asked for is the order in which they were put in, the last one first.",
    ),
    "in the other order": (
        "the list turned",
        "All shards are right, and the list has the last bucket that left at its front.",
    ),
    "whole": (
        "not cut",
        "Every rank returns whole buckets. Right, and not sharded: keep your piece.",
    ),
    "the first piece": (
        "everybody's first piece",
        "Every rank has the piece of the group's first rank.",
    ),
    "a bucket each": (
        "a bucket for each parameter",
        "Each parameter went by itself. `most` says how many elements fit in a bucket: fill it.",
    ),
    "one bucket": (
        "one bucket for all",
        "Everything is in one bucket, which is full when the backward is over. `most` says how "
        "many elements fit.",
    ),
    "exactly full": (
        "exactly full",
        "A parameter was not put into a bucket that it fills exactly. `most` elements are allowed: "
        "a bucket is closed when it would be *longer*.",
    ),
    "in another order": (
        "another order of leaving",
        "All shards are right, and the buckets left in another order. A bucket that is complete "
        "waits until those before it have left.",
    ),
    "not all": (
        "buckets that never left",
        "Those that are there are right, and some buckets never left. One gradient may complete "
        "several buckets at once, when they have waited for the one before them.",
    ),
    "padded each": (
        "padded one by one",
        "Each parameter was padded by itself. A bucket is padded once, at its end.",
    ),
    "padded in front": ("padded in front", "The zeros are to stand at the end of a bucket."),
    "rounded": (
        "rounded on the way",
        "They went through a narrower type on the way. Keep the dtype of the gradients.",
    ),
}


def judge_early(answer: Answer, judge: Judge) -> None:
    """Two steps on three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, trial.__name__)
    seed = int.from_bytes(os.urandom(3), "big")
    for members, case in (
        ([0, 1, 2], trial.Case(29 + seed % 5, 1900)),
        ([1, 2], trial.Case(31 + seed % 4, 2101)),
    ):
        when = on(members)
        reports = judge.trial(answer, trial.train, case, seed, members=members, when=when)
        for step, told in enumerate(zip(*reports, strict=True)):
            where = f"{when}, in backward {step + 1}"
            if len(members) == 2 and any("right" not in one["ideas"] for one in told):
                refuse_world_numbers(answer, where)
            look_at_results(told, where)
            look_at_traffic(told, where)
            look_at_memory(told, where)
            look_at_what_is_left(told, where)
        refuse_spoiled(reports, when)


def look_at_results(told: list[dict], where: str) -> None:
    """The idea that explains all ranks' shards, where they are not right."""
    refuse_none(told, where, "a list with a shard of each bucket")
    for rank, one in enumerate(told):
        if one["came"] < one["of parameters"]:
            raise Finding(
                "no backward",
                f"On rank {rank} {one['came']} of {one['of parameters']} gradients came {where}. "
                "The function is to call loss.backward().",
            )
        if one["count"] is None or not one["only tensors"]:
            raise Finding(
                "not a list",
                f"Rank {rank} got a {one['kind']} back {where}; expected is a list of tensors, one "
                "for each bucket in the order in which they left.",
            )
    if all("right" in one["ideas"] for one in told):
        return
    for idea, (name, text) in IDEAS.items():
        if all(idea in one["ideas"] or "right" in one["ideas"] for one in told):
            raise Finding(name, f"The shards are not those of the sum {where}. {text}")
    one = told[0]
    if any(each["overlap"] for each in told):
        raise Finding(
            "one buffer reused",
            f"The shards are not those of the sum {where}, and some of them lie in the same "
            "memory: a later bucket was written over an earlier one.",
        )
    if one["count"] != one["buckets"]:
        raise Finding(
            "other buckets",
            f"Rank 0 returned {one['count']} shards {where}. A bucket takes parameters as long as "
            "it holds no more than `most` elements with them, and one that is longer by itself "
            "takes that one alone.",
        )
    raise Finding("wrong shards", f"The shards are not those of the sum over the ranks {where}.")


def look_at_traffic(told: list[dict], where: str) -> None:
    """Each bucket once, as a reduce-scatter, in the order of the list, under the backward."""
    n = len(told)
    for rank, one in enumerate(told):
        ops = {op for op, _, _ in one["records"]}
        sent = [(phase, elements) for op, phase, elements in one["records"]
                if op == "reduce_scatter"]  # fmt: skip
        head = f"The shards are right. Rank {rank}"
        if ops & {"all_reduce", "all_gather"} and not sent:
            raise Finding(
                "all-reduce, then cut",
                f"{head} gets every sum whole {where} and throws away what is not its piece: twice "
                "the bytes of a reduce-scatter.",
            )
        if any(phase != "backward" for phase, _ in sent):
            late = sum(phase != "backward" for phase, _ in sent)
            raise Finding(
                "sent after the backward",
                f"{head} sent {late} of {len(sent)} buckets when the backward was over {where}: by "
                "then every gradient is in memory at once. A function that torch calls as each "
                "gradient comes can send earlier.",
            )
        if [k for _, k in sent] != one["padded"] and sorted(k for _, k in sent) == sorted(
            one["padded"]
        ):
            raise Finding(
                "another order of leaving",
                f"{head} returns them in order, and sent them in another {where}. A bucket that is "
                "complete waits until those before it have left: all ranks send in one order.",
            )
        must = sum(one["padded"]) * (n - 1) // n * trial.ITEM
        if [elements for _, elements in sent] != one["padded"] or one["bytes"] > must + 1:
            raise Finding(
                "other messages",
                f"{head} sent {one['bytes']} bytes in {sum(one['ops'].values())} messages {where}; "
                f"each bucket once is {must} bytes in {one['buckets']}.",
            )


def look_at_memory(told: list[dict], where: str) -> None:
    """The shards and a few buckets: never all gradients at once, and no buffer under a shard."""
    for rank, one in enumerate(told):
        if one["held"] > one["shard"] + one["bucket"]:
            raise Finding(
                "a view of the whole",
                f"The shards on rank {rank} are right, and their storages have {one['held']} bytes "
                f"{where}: they are views of whole buckets, which stay alive. The shards are "
                f"{one['shard']} bytes.",
            )
        if one["most held"] > one["allowed"]:
            raise Finding(
                "too much at once",
                f"Rank {rank} held up to {one['most held']} bytes of gradients {where}; all of "
                f"them are {one['whole']}, its shards {one['shard']}, the budget {one['allowed']}. "
                "What has been sent is to be forgotten: the parameters' .grad, and messages that "
                "are never waited for.",
            )


def look_at_what_is_left(told: list[dict], where: str) -> None:
    for rank, one in enumerate(told):
        if one["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed the list `parameters` on rank {rank}, {where}. It is the "
                "caller's: make a list of your own.",
            )
        if one["left"]:
            raise Finding(
                "gradients left",
                f"Rank {rank} still has a gradient in {len(one['left'])} parameters {where}; the "
                "next backward would add to them.",
            )
        if one["hooked"]:
            raise Finding(
                "hooks left",
                f"When your function had returned, {one['hooked']} parameters on rank {rank} still "
                f"had its hooks {where}: the next backward would call them. Take "
                "them off: `handle.remove()`.",
            )


def refuse_spoiled(reports: list[list[dict]], when: str) -> None:
    for rank, steps in enumerate(reports):
        if any(one["spoiled"] for one in steps):
            raise Finding(
                "one buffer reused",
                f"The second backward has written over what the first one returned on rank {rank}, "
                f"{when}. Each call returns shards of its own.",
            )


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
