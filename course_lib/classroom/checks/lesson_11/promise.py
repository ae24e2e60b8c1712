"""`promise` of lesson 11: stage 3 for a stack of layers, within a budget of bytes and memory.

An answer trains three steps, each rank on rows of its own, and is held against the dense stack on
all rows, against the messages of the ledger, and against what the meter finds between the layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_11 import promise_trial as trial
from course_lib.classroom.checks.lesson_11.meter import refuse_first
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_11/promise")
HEAD = "Values and memory are right. In a step rank {} sends {} forward and {} backward {}. "


class Trial:
    """Three steps of the learner's stack on a group, beside the dense one."""

    def __init__(self, reports: list[dict], given: trial.Numbers, when: str):
        self.reports, self.when, self.n = reports, when, len(reports)
        self.layers = len(given.weights)
        self.start = [trial.flat(*pair) for pair in zip(given.weights, given.biases, strict=True)]
        self.steps = trial.dense(given)  # (outputs (n, b, out), gradients of each rank's rows)

    def ranks(self) -> list[tuple[dict, dict]]:
        """(where it was, what it reports) for each rank."""
        return [({"rank": r, "when": self.when}, one) for r, one in enumerate(self.reports)]

    def pieces(self, flats: list[Tensor], rank: int) -> list[Tensor]:
        """This rank's piece of each layer."""
        return [trial.cut(flat, self.n)[rank] for flat in flats]

    def total(self, step: int) -> list[Tensor]:
        """The gradients summed over the ranks, a flat one for each layer."""
        return [sum(parts) for parts in zip(*self.steps[step][1], strict=True)]

    def right(self, step: int, rank: int) -> bool:
        """Whether the output and the shards' gradients of a step are the dense ones."""
        did = self.reports[rank]["steps"][step]
        wanted = [self.steps[step][0][rank], *self.pieces(self.total(step), rank)]
        return looking.all_near([did["out"], *did["grads"]], wanted)


def judge_promise(answer: Answer, judge: Judge) -> None:
    """Try promise; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = looking.fresh_seed()
    w = 11 + seed % 2
    for members, b, widths in (
        (looking.THREE, 2, [w, w + 2, w + 1, w + 3, w]),
        (looking.TWO, 3, [w + 3, w, w + 1, w + 2, w]),
    ):
        when = on(members)
        reports = judge.trial(answer, trial.run, widths, b, seed, members=members, when=when)
        refuse_none(reports, when, "the list of its shards")
        one = Trial(reports, trial.numbers(widths, b, len(members), seed), when)
        for look in LOOKS:
            look(one)


def look_at_shards(one: Trial) -> None:
    """A list of one flat leaf a layer, this rank's piece of it, and nothing whole besides."""
    for where, report in one.ranks():
        pieces = one.pieces(one.start, where["rank"])
        kinds, sizes, shards = report["kinds"], report["sizes"], report["shards"]
        entries = report["kind"] in ("list", "tuple") and set(kinds) <= {"Tensor", "Parameter"}
        holds = {
            "not a list of tensors #1": not entries,
            "not a list of tensors #2": not report["plain"],
            "not cut": shards is None and sum(sizes) >= sum(flat.numel() for flat in one.start),
            "wrong size": shards is None,
            "shards that take no gradient": not report["leaves"],
            "somebody else's piece": not looking.all_near(shards or [], pieces),
        }
        about = {"kind": report["kind"], "sizes": sizes, "n": one.n}
        refuse_first(SAYS, holds, wanted=[p.numel() for p in pieces], **about, **where)


def look_at_values(one: Trial) -> None:
    """Outputs and the shards' gradients of the first step."""
    outs, alone = one.steps[0]
    for where, report in one.ranks():
        first = report["steps"][0]
        if not looking.near(first["out"], outs[where["rank"]]):
            raise SAYS("wrong output", **where)
        if None in first["grads"]:
            raise SAYS("no gradient", **where)
    fine = [rank for rank in range(one.n) if one.right(0, rank)]
    if len(fine) == one.n:
        return
    total = one.total(0)
    given = {
        "own rows alone": alone,
        "a mean": [[g / one.n for g in total]] * one.n,
        "n times": [[g * one.n for g in total]] * one.n,
    }
    gives = {
        entry: [torch.cat(one.pieces(own, rank)) for rank, own in enumerate(flats)]
        for entry, flats in given.items()
    }
    seen = [torch.cat(report["steps"][0]["grads"]) for report in one.reports]
    looking.refuse_idea(seen, looking.ideas(SAYS, gives, n=one.n), one.when)
    if len(fine) == 1:
        raise SAYS("on one rank only", rank=fine[0], when=one.when)
    wrong = next(rank for rank in range(one.n) if rank not in fine)
    raise SAYS("wrong gradient", rank=wrong, when=one.when)


def look_at_memory(one: Trial) -> None:
    """Nothing whole but the layer that is at work."""
    for where, report in one.ranks():
        first = report["steps"][0]
        forward, backward = max(first["in_forward"]), max(first["in_backward"], default=0)
        holds = {
            "cut, and kept whole": report["held"],
            "the graph keeps it": forward > 1 and max(first["complete"]) <= 1,
            "not freed behind the forward": forward > 1,
            "not freed in the backward": backward > 2 or first["after"],
        }
        most = {"forward": forward, "backward": max(backward, first["after"])}
        refuse_first(SAYS, holds, held=report["held"], **most, **where)


def look_at_traffic(one: Trial) -> None:
    """A gather for each layer in each direction, and a reduce-scatter."""
    padded = sum(p.numel() for p in one.pieces(one.start, 0))
    move = padded * looking.ITEM * (one.n - 1)
    for where, report in one.ranks():
        forward, backward = (report["steps"][0][way] for way in ("forward", "backward"))
        ops, known = backward["ops"], {"all_gather", "reduce_scatter"}
        most = max(forward["ops"].get("all_gather", 0), *(ops.get(op, 0) for op in known))
        there, back = forward["bytes"], backward["bytes"]
        holds = {
            "all-reduce, then cut": "all_reduce" in ops,
            "a message for each parameter": most > one.layers,
            "over budget": there > move + 1 or back > 2 * move + 1 or set(ops) - known,
        }
        said = (looking.counted(one_way["ops"]) for one_way in (forward, backward))
        head = HEAD.format(where["rank"], *said, one.when)
        refuse_first(SAYS, holds, head=head, layers=one.layers, there=there, back=back)


def look_at_steps(one: Trial) -> None:
    """The later steps, with the shards that have moved; in the last there are two stacks."""
    for where, report in one.ranks():
        for step in range(1, trial.STEPS):
            last = step == trial.STEPS - 1
            if not one.right(step, where["rank"]) or (last and report["again"] != one.layers):
                raise SAYS("two stacks at once" if last else "another second step", **where)


LOOKS = (look_at_shards, look_at_values, look_at_memory, look_at_traffic, look_at_steps)
PROMISE = Exercise(judge=judge_promise, **SAYS.about)
