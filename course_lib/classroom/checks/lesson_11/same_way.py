"""`same_way` of lesson 11: each rank wants other layers, and a gather needs all ranks.

An answer is called on some batches with other wishes each; held against each rank's own way through
the layers, against the gathers that were due, and against how many layers were whole at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_11 import same_way_trial as trial
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

SMALL = 8 * trial.LAYERS  # bytes: a number for each layer

LAYERS_BY_MISTAKE = (
    ("W not transposed", lambda x, w: x + torch.tanh(x @ w), "The layers use W and not W.T."),
    ("x left out", lambda x, w: torch.tanh(x @ w.T), "A layer adds its tanh to x: x was left out."),
    ("tanh of all", lambda x, w: torch.tanh(x + x @ w.T), "The tanh is of x @ W.T alone; x is "
     "added to it."),
)  # fmt: skip


class Trial:
    """Some batches on a group."""

    def __init__(self, reports: list[dict], sizes: trial.Sizes, seed: int, when: str):
        self.reports, self.sizes, self.when, self.n = reports, sizes, when, len(reports)
        self.given = trial.numbers(sizes, self.n, seed)

    def through(
        self, call: int, rank: int, layers: Sequence[bool], layer: Callable = trial.layer
    ) -> Tensor:
        x = self.given.xs[call, rank]
        for weight, goes in zip(self.given.weights, layers, strict=True):
            x = layer(x, weight) if goes else x
        return x

    def own_where(self, enough: Callable[[int], bool]) -> list[list[bool]]:
        """For each rank of the first batch: its own wishes, where `enough` ranks share them."""
        wishes = self.given.wanted[0]
        votes = [sum(some) for some in zip(*wishes, strict=True)]
        return [[w and enough(k) for w, k in zip(own, votes, strict=True)] for own in wishes]

    def union(self, call: int) -> list[bool]:
        return [any(some) for some in zip(*self.given.wanted[call], strict=True)]

    def calls(self) -> Iterator[tuple[int, int, dict]]:
        """(call, rank, what it did), batch by batch."""
        for call in range(trial.CALLS):
            for rank, report in enumerate(self.reports):
                if call < len(report["calls"]):
                    yield call, rank, report["calls"][call]


def judge_same_way(answer: Answer, judge: Judge) -> None:
    """Try same_way; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    h = 5 + seed % 3
    for members, sizes in ((THREE, trial.Sizes(2, h)), (TWO, trial.Sizes(3, h + 1))):
        when = on(members)
        # In the second batch rank 0 wants nothing.
        reports = judge.trial(
            answer, trial.run, list(sizes), seed, members=members, when=when, empty=[0]
        )
        refuse_none(reports, when, "the rows that have gone through their layers")
        one = Trial(reports, sizes, seed, when)
        for look in (look_at_ways, look_at_values, look_at_traffic):
            try:
                look(one)
            except Finding:
                if one.n == 2:  # right on all ranks of the world, and wrong on some of them
                    refuse_world_numbers(answer, one.when)
                raise


def look_at_ways(one: Trial) -> None:
    """All ranks in the same gather, always."""
    for call, rank, did in one.calls():
        if did["mixed"]:
            number, asked = did["mixed"][0]
            told = ", ".join(f"rank {r} in that of layer {layer}" for r, layer in enumerate(asked))
            raise Finding(
                "ranks that part",
                f"In gather {number} of batch {call + 1} the ranks mean different layers "
                f"{one.when}: {told}. Nothing complains, since all layers have one size, and what "
                "arrives is a mixture. A rank cannot choose alone which gathers it takes part in.",
            )
        if did["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed x, the list of wishes or the list of units on rank "
                f"{rank}, {one.when}. Work out of place.",
            )
        if did["out"] is None:
            raise Finding(
                "wrong shape",
                f"Rank {rank} got {came_back(did)} back {one.when}; "
                f"expected is a tensor of shape {[one.sizes.b, one.sizes.h]} and dtype float64.",
            )


def look_at_values(one: Trial) -> None:
    """Each rank's rows through the layers that this rank wants, and no others."""
    right = all(near(did["out"], one.through(call, rank, one.given.wanted[call][rank]))
                for call, rank, did in one.calls())  # fmt: skip
    if right:
        return
    first = [did["out"] for call, _, did in one.calls() if call == 0]
    wishes = one.given.wanted[0]
    both = [all(some) for some in zip(*wishes, strict=True)]
    firsts = [[own and first for own, first in zip(o, wishes[0], strict=True)] for o in wishes]
    ideas = (
        ("somebody else's layer", [one.union(0)] * one.n,
         "The rows went through every layer that *some* rank wants. To take part in a gather and "
         "to use what it brings are two things."),
        ("only where all agree", [both] * one.n,
         "The rows went through the layers that *all* ranks want. A rank that alone wants a layer "
         "has to get it as well."),
        ("a rank of its own decides", [wishes[0]] * one.n,
         "All rows went through the layers that the group's first rank wants. Every rank's wishes "
         "count."),
        ("a rank of its own decides", firsts,
         "A layer came where the group's first rank wants it, and nowhere else. Every rank's "
         "wishes count."),
        ("only where most agree", one.own_where(lambda votes: votes > 1),
         "A layer that one rank alone wants was left out. It has to come as well."),
        ("one vote exactly", one.own_where(lambda votes: votes == 1),
         "The rows went through the layers that exactly one rank wants. Compare the sum of the "
         "wishes with 0, and not with 1."),
        ("none", [[False] * trial.LAYERS] * one.n, "The rows went through no layer."),
    )  # fmt: skip
    gives = [
        Idea(name, text, [one.through(0, r, goes) for r, goes in enumerate(layers)])
        for name, layers, text in ideas
    ]
    for name, layer, text in LAYERS_BY_MISTAKE:
        gives.append(Idea(name, text, [one.through(0, r, w, layer) for r, w in enumerate(wishes)]))
    refuse_idea(first, gives, one.when)
    if all(near(out, one.through(0, r, wishes[r])) for r, out in enumerate(first)):
        raise Finding(
            "another later batch",
            f"The first batch is right, and a later one with other wishes is not, {one.when}. The "
            "wishes come anew with each batch, and so must the agreement about them.",
        )
    right = [one.through(0, r, w) for r, w in enumerate(wishes)]
    refuse_general(first, right, one.when, sizes={"rows": one.sizes.b, "layers": trial.LAYERS})
    raise Finding(
        "wrong output",
        f"The output is not each rank's own rows through the layers that it wants, {one.when}. The "
        "layers come in the order of the list; a layer is x + tanh(x @ W.T).",
    )


def look_at_traffic(one: Trial) -> None:
    """The gathers that some rank wants, one small message, one layer whole at a time."""
    for call, rank, did in one.calls():
        due = [i for i, some in enumerate(one.union(call)) if some]
        if did["most"] > 1 or did["now"]:
            raise Finding(
                "all whole at once",
                f"Values are right. On rank {rank} up to {did['most']} layers are whole at once, "
                f"and {did['now']} are left whole in the end, {one.when}. It runs, and does not "
                "shard: free a layer before the next is gathered, on ranks that have no use for it "
                "too.",
            )
        if did["kept"] > 1 or did["left"]:
            raise Finding(
                "copies kept whole",
                f"Values are right, and every unit is freed. Yet on rank {rank} there are "
                f"{max(did['kept'], did['left'])} tensors as large as a complete weight in memory "
                f"before a gather or when your function has returned, {one.when}: copies of "
                "weights, which `free` cannot free.",
            )
        extra = len(did["gathered"]) - len(due)
        others = sum(did["sent"]["ops"].values()) - len(did["gathered"])
        if extra > 0:
            raise Finding(
                "gathered for nobody",
                f"Values are right. In batch {call + 1} rank {rank} takes part in "
                f"{len(did['gathered'])} gathers {one.when}, and {len(due)} layers are wanted by "
                "some rank. All ranks can know before the first gather which these are.",
            )
        if others > 1:
            raise Finding(
                "a message for each layer",
                f"Values are right. Beside the gathers rank {rank} sends {others} messages "
                f"{one.when}. The wishes for all layers fit into one.",
            )
        weight = torch.Size((one.sizes.h, one.sizes.h)).numel()
        piece = -(-weight // one.n) + 1  # and the layer's number
        budget = len(due) * 8 * piece * (one.n - 1) + 2 * SMALL * (one.n - 1)
        if did["sent"]["bytes"] > budget:
            raise Finding(
                "more bytes",
                f"Values are right. Rank {rank} sends {did['sent']['bytes']} bytes in batch "
                f"{call + 1}, {one.when}; the gathers and a number for each layer need {budget} at "
                "most.",
            )


SAME_WAY = Exercise(
    name="same_way",
    title="All the same way",
    points=4,
    judge=judge_same_way,
    when_right=(
        "Every rank's rows went through the layers that this rank wants, and every rank was in the "
        "same gathers, those that some rank wants, on two ranks and on three, whatever the wishes. "
        "One small message settled it, and one layer was whole at a time."
    ),
    hints=(
        "Which gathers does a rank have to take part in: its own, or also those of other ranks? "
        "And what does it do with a layer that it has no use for?",
        "Before the first gather all ranks need to know the same thing: for each layer, whether "
        "any rank wants it. What kind of sum over the ranks says that? The maximum of zeros and "
        "ones, say.",
        "One tensor with a number for each layer, one all-reduce. Then a loop over the layers in "
        "their order: gather where some rank wants it; use it where you want it; free.",
    ),
)
