"""`tied_head` of lesson 11: the embedding is the head's weight too, at stage 3.

An answer makes the head; with it a small model trains three steps and is held against the dense
one, against the messages of a head of the check's own, and against what is whole in memory.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_11 import tied_trial as trial
from course_lib.classroom.checks.lesson_11.ready import take

TOLERANCE = 1e-10


def near(a: Tensor | None, b: Tensor) -> bool:
    return a is not None and a.shape == b.shape and bool(((a - b).abs() <= TOLERANCE).all())


class Trial:
    """Three steps with the learner's head, beside the dense model."""

    def __init__(self, reports: list[dict], sizes: trial.Sizes, seed: int, when: str):
        self.reports, self.when, self.n = reports, when, len(reports)
        self.given = trial.numbers(sizes, self.n, seed)
        self.steps = self.dense()

    def dense(self, only: str = "") -> list[tuple[list[Tensor], Tensor]]:
        """(logits of each rank, the table after it) of each step; `only` one of the table's two
        uses has a gradient."""
        table, blocks = self.given.table.clone(), self.given.blocks.clone()
        steps = []
        for ids, dys in zip(self.given.ids, self.given.dys, strict=True):
            leaves = [table.clone().requires_grad_(), blocks.clone().requires_grad_()]
            looked, head = (
                leaves[0].detach() if only == other else leaves[0] for other in ("head", "lookup")
            )
            logits = []
            for rows in ids:
                x = looked[rows]
                for weight in leaves[1]:
                    x = torch.tanh(x @ weight.T)
                logits.append(x @ head.T)
            loss = sum((y * dy).sum() for y, dy in zip(logits, dys, strict=True)) / self.n
            grads = torch.autograd.grad(loss, leaves)
            table, blocks = table - trial.RATE * grads[0], blocks - trial.RATE * grads[1]
            steps.append(([y.detach() for y in logits], table))
        return steps


def judge_tied(answer: Answer, judge: Judge) -> None:
    """Try tied_head; raise the Finding that explains best what is wrong."""
    take(answer, judge, "tied_trial")
    seed = int.from_bytes(os.urandom(3), "big")
    h = 6 + seed % 3
    for members, sizes in (
        ([0, 1, 2], trial.Sizes(2, 2, 37, h)),
        ([1, 2], trial.Sizes(1, 4, 41, h + 1)),
    ):
        when = on(members)
        part = 'bench.part("lesson_11.tied_trial")'
        call = f"{part}.run({answer.name}, {part}.{sizes!r}, {seed}, __trial__)"
        reports = judge.trial(answer, call, members, when)
        refuse_none(reports, when, "a module")
        one = Trial(reports, sizes, seed, when)
        for look in (look_at_module, look_at_values, look_at_memory, look_at_traffic):
            look(one)


def look_at_module(one: Trial) -> None:
    """A module, that has the table for a parameter, and no other."""
    for rank, report in enumerate(one.reports):
        if not report["module"]:
            raise Finding(
                "not a module",
                f"Rank {rank} got a {report['kind']} back {one.when}; expected is an nn.Module. "
                "Hooks belong to modules: the engine cannot see when a plain function runs.",
            )
        if report["promise"]:
            raise Finding(
                "used outside its module",
                f"On rank {rank} the embedding's weight was read where its unit does not run, "
                f"{one.when}: the engine has put hooks on the modules that *have* the parameter "
                "as their own, and yours does not. What makes a parameter a module's own?",
            )
        extra = report["parameters"] - one.given.table.numel() - one.given.blocks.numel()
        if extra:
            raise Finding(
                "untied",
                f"The model has {extra} parameters too many on rank {rank}, {one.when}. Lookup and "
                "head are meant to be one parameter: one gradient, one update. Not a second one "
                "that begins with the same values, and no bias.",
            )


def look_at_values(one: Trial) -> None:
    """Logits and the table after each of three steps."""
    half = {name: one.dense(name) for name in ("lookup", "head")}
    for rank, report in enumerate(one.reports):
        first = report["steps"][0]
        if first["logits"] is None:
            raise Finding(
                "wrong shape",
                f"The head gives {first['shape']} on rank {rank}, {one.when}; expected are logits "
                "for every vocabulary entry, (b, s, v).",
            )
        if not near(first["logits"], one.steps[0][0][rank]):
            raise Finding(
                "wrong logits",
                f"The logits on rank {rank} are not x times the embedding's rows, {one.when}.",
            )
        if report["whole"].get("before"):
            raise Finding(
                "a copy kept whole",
                f"The first logits are right. Before the first forward {report['whole']['before']} "
                f"whole table is in memory on rank {rank}, {one.when}: a copy of your head's own. "
                "It is not cut, and no optimizer will ever change it.",
            )
        for use, other in (("lookup", "head"), ("head", "lookup")):
            if near(torch.cat(first["table"]), half[use][0][1]):
                raise Finding(
                    "half of the gradient",
                    f"After one step the table on rank {rank} has moved by the gradient of the "
                    f"{use} alone, {one.when}. It has two uses, and its gradient is the sum of "
                    f"both. Where is the gradient of the {other} lost?",
                )
        for step, (logits, table) in enumerate(one.steps):
            did = report["steps"][step]
            if not (near(did["logits"], logits[rank]) and near(torch.cat(did["table"]), table)):
                raise Finding(
                    "another step",
                    f"In step {step + 1} logits or table on rank {rank} are not those of the dense "
                    f"model, {one.when}.",
                )


def look_at_memory(one: Trial) -> None:
    """The table is whole while it is used, once."""
    for rank, report in enumerate(one.reports):
        if report["whole"]["in the blocks"]:
            raise Finding(
                "whole all the way",
                f"Values are right. While the blocks run, the whole table is in memory on rank "
                f"{rank}, {one.when}. Between its two uses it has to go.",
            )
        if report["whole"]["kept"] > 1:
            raise Finding(
                "a second whole table",
                f"Values are right. Between forward and backward {report['whole']['kept']} tensors "
                f"as large as the whole table are in memory on rank {rank}, {one.when}, where one "
                "is allowed. Something as large as the table was computed from it, and the graph "
                "keeps it: it runs, and does not shard.",
            )


def look_at_traffic(one: Trial) -> None:
    """No more messages than a head of the check's own sends."""
    for rank, report in enumerate(one.reports):
        ours, sent = report["ours"], report["sent"]
        if any(sent[op] > ours[op] for op in trial.GATHERS) or sent["bytes"] > ours["bytes"] + 64:
            raise Finding(
                "over budget",
                f"Values and memory are right. In a step rank {rank} takes part in "
                f"{sent['all_gather']} gathers and {sent['reduce_scatter']} reduce-scatters, "
                f"{sent['bytes']} bytes {one.when}; {ours['all_gather']} and "
                f"{ours['reduce_scatter']} will do.",
            )


TIED_HEAD = Exercise(
    name="tied_head",
    title="A head that is a table",
    points=3,
    judge=judge_tied,
    when_right=(
        "Logits and three steps of training are those of the dense model, on two ranks and on "
        "three. The table came for the lookup, went, and came again for the head; its gradient was "
        "one sum, sent once; and there was never more than one whole table."
    ),
    hints=(
        "Read the error: *the forward of a module that has it*. How does a module come to have a "
        "parameter, so that `named_parameters(recurse=False)` lists it?",
        "A parameter may belong to two modules. It stays one parameter: `model.parameters()` names "
        "it once, and its gradient is the sum over both uses.",
        "An nn.Linear without bias is x times the rows of its weight. Its weight can be replaced "
        "by a parameter that is there already.",
    ),
)
