"""`same_way` of lesson 11: each rank wants other layers, and a gather needs all ranks.

An answer is called on some batches with other wishes each; held against each rank's own way through
the layers, against the gathers that were due, and against how many layers were whole at once. Each
gather carries its layer's number: ranks which mean different ones get a note and not a hang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import bench, looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_11.meter import Meter, refuse_first
from course_lib.classroom.checks.words import Page
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group
from course_lib.memory.watch import Watch

SAYS = Page("lesson_11/same_way")
LAYERS, CALLS = 7, 3
MISTAKES = {
    "W not transposed": lambda x, w: x + torch.tanh(x @ w),
    "x left out": lambda x, w: torch.tanh(x @ w.T),
    "tanh of all": lambda x, w: torch.tanh(x + x @ w.T),
}


class Numbers(NamedTuple):
    """The same on every rank, and on the judge."""

    weights: Tensor  # (layer, h, h)
    xs: Tensor  # (call, n, b, h)
    wanted: list[list[list[bool]]]  # [call][rank][layer]


def numbers(b: int, h: int, n: int, seed: int) -> Numbers:
    """Weights, rows and wishes. First as many for each rank, and different ones: on their own ways
    they would never notice. One layer all want, one two, one a rank alone, one none. Then one rank
    wants nothing, the next two layers, a third one of them; then none wants any."""
    made = torch.Generator().manual_seed(seed)
    weights = torch.randn((LAYERS, h, h), generator=made, dtype=torch.float64)
    xs = torch.randn((CALLS, n, b, h), generator=made, dtype=torch.float64)
    order = torch.randperm(LAYERS, generator=made).tolist()
    some = ([[0, 4, 1], [0, 4, 2], [0, 5, 3]], [[], [6, 4], [4]], [[], [], []])
    wanted = [[[order.index(i) in s for i in range(LAYERS)] for s in batch[:n]] for batch in some]
    return Numbers(weights, xs, wanted)


def layer(x: Tensor, weight: Tensor) -> Tensor:
    """What a layer makes of the rows."""
    return x + torch.tanh(x @ weight.T)


class Unit:
    """One layer's weight, cut: `gather()` gives it whole, `free()` takes it away again."""

    def __init__(self, number: int, weight: Tensor, group: Group, log: dict, meter: Meter):
        n, rank = group.size(), group.rank()
        flat = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % n))
        self.number, self.shape, self.group, self.log = number, weight.shape, group, log
        self.meter = meter
        self.piece = torch.cat((flat.chunk(n)[rank], flat.new_tensor([float(number)])))
        self.whole: Tensor | None = None

    def gather(self) -> Tensor:
        self.log["kept"] = max(self.log["kept"], self.meter.now(0))
        every = all_gather(self.piece[None], self.group)  # (n, piece and the layer's number)
        asked = [int(number) for number in every[:, -1].tolist()]
        self.log["gathers"] += 1
        if set(asked) != {self.number}:
            self.log["mixed"] = self.log["mixed"] or (self.log["gathers"], asked)
        weight = every[:, :-1].reshape(-1)[: self.shape.numel()].view(self.shape).clone()
        if self.whole is None:
            self.log["now"] += 1
            self.log["most"] = max(self.log["most"], self.log["now"])
        self.whole = weight
        return weight

    def free(self) -> None:
        if self.whole is not None:
            self.whole.untyped_storage().resize_(0)
            self.whole = None
            self.log["now"] -= 1


def run(function: Callable, group: Group, b: int, h: int, seed: int) -> dict:
    """Some batches, one after another, with other wishes each time."""
    n, rank = group.size(), group.rank()
    given, calls = numbers(b, h, n, seed), []
    with Watch() as watch:
        for x, wanted in zip(given.xs[:, rank], given.wanted, strict=True):
            meter = Meter(watch, given.weights[0].nbytes)
            log = {"gathers": 0, "mixed": None, "now": 0, "most": 0, "kept": 0}
            units = [Unit(i, w, group, log, meter) for i, w in enumerate(given.weights)]
            own, wish, known = x.clone(), list(wanted[rank]), list(units)
            with torch.no_grad():
                out, sent = bench.watched(lambda o=own, w=wish, u=units: function(o, w, u, group))
            good = bench.plain(out) and out.shape == x.shape and out.dtype == x.dtype
            same = torch.equal(own, x) and wish == wanted[rank] and units == known
            now = {"out": out.detach().clone() if good else None, "changed": not same, **sent}
            calls.append({**bench.described(out), **now, **log, "left": meter.now(0)})
            if log["mixed"] or not good:
                break
    return {"kind": calls[0]["kind"], "calls": calls}


class Trial:
    """Some batches on a group."""

    def __init__(self, reports: list[dict], b: int, h: int, seed: int, when: str):
        self.reports, self.when, self.n = reports, when, len(reports)
        self.given = numbers(b, h, self.n, seed)

    def through(self, call: int, rank: int, goes: Sequence[bool], by: Callable = layer) -> Tensor:
        """A rank's rows after the layers for which `goes` is True."""
        x = self.given.xs[call, rank]
        for weight, goes_there in zip(self.given.weights, goes, strict=True):
            x = by(x, weight) if goes_there else x
        return x

    def calls(self) -> Iterator[tuple[dict, dict]]:
        """(where it was, what a rank did), batch by batch."""
        for call in range(CALLS):
            for rank, report in enumerate(self.reports):
                if call < len(report["calls"]):
                    where = {"batch": call + 1, "rank": rank, "when": self.when}
                    yield where, report["calls"][call]


def judge_same_way(answer: Answer, judge: Judge) -> None:
    """Try same_way; raise the Finding that explains best what is wrong."""
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    h = 5 + seed % 3
    for members, *sizes in ((looking.THREE, 2, h), (looking.TWO, 3, h + 1)):
        when = on(members)
        # In the second batch rank 0 wants nothing.
        reports = judge.trial(answer, run, *sizes, seed, members=members, when=when, empty=[0])
        refuse_none(reports, when, "the rows that have gone through their layers")
        one = Trial(reports, *sizes, seed, when)
        for look in (look_at_ways, look_at_values, look_at_traffic):
            look(one)


def look_at_ways(one: Trial) -> None:
    """All ranks in the same gather, always."""
    shape = list(one.given.xs.shape[2:])
    for about, did in one.calls():
        number, asked = did["mixed"] or (0, [])
        told = ", ".join(f"rank {r} in that of layer {i}" for r, i in enumerate(asked))
        holds = {
            "ranks that part": did["mixed"],
            "input changed": did["changed"],
            "wrong shape": did["out"] is None,
        }
        got = looking.came_back(did)
        refuse_first(SAYS, holds, **about, number=number, told=told, got=got, shape=shape)


def look_at_values(one: Trial) -> None:
    """Each rank's rows through the layers that this rank wants, and no others."""
    wanted, n = one.given.wanted, one.n
    for about, did in one.calls():
        call, rank = about["batch"] - 1, about["rank"]
        if not looking.near(did["out"], one.through(call, rank, wanted[call][rank])):
            break
    else:
        return
    votes = [sum(some) for some in zip(*wanted[0], strict=True)]

    def own(enough: Callable[[int, bool], bool]) -> list[list[bool]]:
        """Each rank's wishes, where the votes, or the first rank's wish, are `enough`."""
        every = (zip(wishes, votes, wanted[0][0], strict=True) for wishes in wanted[0])
        return [[wish and enough(k, first) for wish, k, first in rank] for rank in every]

    ways = (
        ("somebody else's layer", [[k > 0 for k in votes]] * n),
        ("only where all agree", own(lambda k, _: k == n)),
        ("a rank of its own decides", [wanted[0][0]] * n),
        ("a rank of its own decides", own(lambda _, first: first)),
        ("only where most agree", own(lambda k, _: k > 1)),
        ("one vote exactly", own(lambda k, _: k == 1)),
        ("none", own(lambda *_: False)),
    )
    right, *others = (
        [one.through(0, r, wishes, by) for r, wishes in enumerate(wanted[0])]
        for by in (layer, *MISTAKES.values())
    )
    gives = [(e, [one.through(0, r, goes) for r, goes in enumerate(way)]) for e, way in ways]
    gives += zip(MISTAKES, others, strict=True)
    seen = [report["calls"][0]["out"] for report in one.reports]
    looking.refuse_idea(seen, looking.ideas(SAYS, gives), one.when)
    if all(map(looking.near, seen, right)):
        raise SAYS("another later batch", when=one.when)
    b = one.given.xs.shape[2]
    looking.refuse_general(seen, right, one.when, sizes={"rows": b, "layers": LAYERS})
    raise SAYS("wrong output", when=one.when)


def look_at_traffic(one: Trial) -> None:
    """The gathers that some rank wants, one small message, one layer whole at a time."""
    piece = -(-one.given.weights[0].numel() // one.n) + 1  # and the layer's number
    for about, did in one.calls():
        due = sum(map(any, zip(*one.given.wanted[about["batch"] - 1], strict=True)))
        others = sum(did["ops"].values()) - did["gathers"]
        budget = (due * piece + 2 * LAYERS) * looking.ITEM * (one.n - 1)
        copies = max(did["kept"], did["left"])
        holds = {
            "all whole at once": did["most"] > 1 or did["now"],
            "gathered for nobody": did["gathers"] > due,
            "a message for each layer": others > 1,
            "more bytes": did["bytes"] > budget,
            "copies kept whole": copies,
        }
        more = {"due": due, "others": others, "budget": budget, "copies": copies}
        refuse_first(SAYS, holds, **about, **did, **more)


SAME_WAY = Exercise(judge=judge_same_way, **SAYS.about)
