"""`tied_head` of lesson 11: the embedding is the head's weight too, at stage 3.

An answer makes the head; with it a small model trains three steps and is held against the dense
one, against the messages of a head of the check's own, and against what is whole in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_11 import tied_trial as trial
from course_lib.classroom.checks.looking import (
    THREE,
    TWO,
    Idea,
    came_back,
    fresh_seed,
    near,
    refuse_general,
    refuse_idea,
)


class Trial:
    """Three steps with the learner's head, beside the dense model."""

    def __init__(self, reports: list[dict], sizes: trial.Sizes, seed: int, when: str):
        self.reports, self.when, self.n = reports, when, len(reports)
        self.given = trial.numbers(sizes, self.n, seed)
        self.last: list[Tensor] = []  # what the head is given on each rank, in the first step
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
            logits, last = [], []
            for rows in ids:
                x = looked[rows]
                for weight in leaves[1]:
                    x = torch.tanh(x @ weight.T)
                logits.append(x @ head.T)
                last.append(x.detach())
            self.last = self.last or last
            loss = sum((y * dy).sum() for y, dy in zip(logits, dys, strict=True)) / self.n
            grads = torch.autograd.grad(loss, leaves)
            table, blocks = table - trial.RATE * grads[0], blocks - trial.RATE * grads[1]
            steps.append(([y.detach() for y in logits], table))
        return steps


def judge_tied(answer: Answer, judge: Judge) -> None:
    """Try tied_head; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    h = 6 + seed % 3
    for members, sizes in (
        (THREE, trial.Sizes(2, 2, 37, h)),
        (TWO, trial.Sizes(1, 4, 41, h + 1)),
    ):
        when = on(members)
        reports = judge.trial(answer, trial.run, list(sizes), seed, members=members, when=when)
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
        if report["shared"]:
            raise Finding(
                "one head for all",
                f"Rank {rank} got the same module back for two embeddings, {one.when}. Each model "
                "has a table and a head of its own: keep nothing between calls.",
            )
        if not report["same"]:
            raise Finding(
                "another table",
                f"After your function the embedding has another table than before on rank {rank}, "
                f"{one.when}: its values are gone. The head takes the embedding's weight, and not "
                "the embedding the head's.",
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


def look_at_logits(one: Trial) -> None:
    """The first logits: of every entry, and with the model's own table."""
    seen, right = [], one.steps[0][0]
    for rank, report in enumerate(one.reports):
        first = report["steps"][0]
        if first["logits"] is None:
            raise Finding(
                "wrong shape",
                f"The head gives {came_back(first)} on rank {rank}, {one.when}; expected are "
                "logits for every vocabulary entry, (b, s, v).",
            )
        seen.append(first["logits"])
    others = trial.other_tables(one.given)
    refuse_idea(
        seen,
        [
            Idea(
                "one head for all",
                "The logits are those of another model's table, whose head was made before this "
                "one's or after it. Keep each table with its own module, not in a class, a global "
                "or a cache.",
                [y @ table.T for y in one.last],
            )
            for table in others
        ],
        one.when,
    )
    for rank, (logits, wanted) in enumerate(zip(seen, right, strict=True)):
        if not near(logits, wanted):
            refuse_general(seen, right, one.when, what="logits")
            raise Finding(
                "wrong logits",
                f"The logits on rank {rank} are not x times the embedding's rows, {one.when}.",
            )


def look_at_values(one: Trial) -> None:
    """Logits and the table after each of three steps."""
    look_at_logits(one)
    half = {name: one.dense(name) for name in ("lookup", "head")}
    for rank, report in enumerate(one.reports):
        first = report["steps"][0]
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
