"""`same_way` of lesson 11: ranks need different layers in each batch, but a gather needs all ranks.
Each gather sends its layer's number, so ranks in different gathers are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from course_classroom.judge import bench, frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on, refuse_none
from course_lessons.lesson_11.meter import Meter
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group
from course_lib.memory.lifetimes import StorageWatch

SAYS = words.Page(__file__, "same_way")
LAYERS, CALLS = 7, 3
MISTAKES = {
    "W not transposed": lambda x, w: x + torch.tanh(x @ w),
    "x left out": lambda x, w: torch.tanh(x @ w.T),
    "tanh of all": lambda x, w: torch.tanh(x + x @ w.T),
}


class Batches:
    """Weights (layer, h, h), rows (call, n, b, h) and wishes [call][rank][layer], identical on all
    ranks.

    In the first batch, all ranks wish for equally many layers, but not the same, so their gathers
    would silently mix. Some layers are needed by all ranks, by two, by one, or by none. In the
    second batch, one rank needs no layer, one two, and one only one. In the third, none needs any.
    """

    def __init__(self, b: int, h: int, n: int, seed: int):
        made = torch.Generator().manual_seed(seed)
        self.weights = torch.randn((LAYERS, h, h), generator=made, dtype=torch.float64)
        self.xs = torch.randn((CALLS, n, b, h), generator=made, dtype=torch.float64)
        order = torch.randperm(LAYERS, generator=made).tolist()
        some = ([[0, 4, 1], [0, 4, 2], [0, 5, 3]], [[], [6, 4], [4]], [[], [], []])
        self.wanted = [
            [[order.index(i) in s for i in range(LAYERS)] for s in batch[:n]] for batch in some
        ]

    def through(
        self, call: int, ways: Sequence[Sequence[bool]], by: Callable | None = None
    ) -> list[Tensor]:
        """Return each rank's rows after the layers for which its way is True."""
        by, found = by or (lambda x, w: x + torch.tanh(x @ w.T)), []
        for x, way in zip(self.xs[call], ways, strict=True):
            for weight, goes_there in zip(self.weights, way, strict=True):
                x = by(x, weight) if goes_there else x
            found.append(x)
        return found


class Unit:
    """A layer's sharded weight: `gather()` returns it in full, `free()` releases it."""

    def __init__(self, number: int, weight: Tensor, group: Group, log: dict, meter: Meter):
        n, rank = group.size(), group.rank()
        flat = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % n))
        self.number, self.shape, self.group, self.log = number, weight.shape, group, log
        self.meter = meter
        self.piece = torch.cat((flat.chunk(n)[rank], flat.new_tensor([float(number)])))
        self.whole: Tensor | None = None

    def gather(self) -> Tensor:
        log = self.log
        log["kept"] = max(log["kept"], self.meter.now(0))
        every = all_gather(self.piece[None], self.group)  # (n, piece and the layer's number)
        asked = [int(number) for number in every[:, -1].tolist()]
        log["gathers"] += 1
        if set(asked) != {self.number} and not log["told"]:
            told = (f"rank {rank} in that of layer {number}" for rank, number in enumerate(asked))
            log |= {"number": log["gathers"], "told": ", ".join(told)}
        weight = every[:, :-1].reshape(-1)[: self.shape.numel()].view(self.shape).clone()
        if self.whole is None:
            log["now"] += 1
            log["most"] = max(log["most"], log["now"])
        self.whole = weight
        return weight

    def free(self) -> None:
        if self.whole is not None:
            self.whole.untyped_storage().resize_(0)
            self.whole = None
            self.log["now"] -= 1


def run(function: Callable, group: Group, b: int, h: int, seed: int) -> dict:
    """Run several batches in sequence, each with different wishes for layers."""
    n, rank = group.size(), group.rank()
    given, calls = Batches(b, h, n, seed), []
    with StorageWatch() as watch:
        for x, wanted in zip(given.xs[:, rank], given.wanted, strict=True):
            meter = Meter(watch, given.weights[0].nbytes)
            log = {"gathers": 0, "number": 0, "told": "", "now": 0, "most": 0, "kept": 0}
            units = [Unit(i, w, group, log, meter) for i, w in enumerate(given.weights)]
            own, wish, known = x.clone(), list(wanted[rank]), list(units)
            with torch.no_grad():
                out, sent = bench.watched(lambda o=own, w=wish, u=units: function(o, w, u, group))
            good = bench.plain(out) and out.shape == x.shape and out.dtype == x.dtype
            call = {
                **sent,
                **log,
                "kind": bench.kind(out),
                "got": looking.came_back(bench.described(out)),
                "out": out.detach().clone() if good else None,
                "changed": not torch.equal(own, x) or wish != wanted[rank] or units != known,
                "others": sum(sent["ops"].values()) - log["gathers"],
                "copies": max(log["kept"], meter.now(0)),
            }
            calls.append(call)
            if log["told"] or not good:
                break
    return {"kind": calls[0]["kind"], "calls": calls}


def judge_same_way(answer: Answer, judge: Judge) -> None:
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    h = 5 + seed % 3
    for members, *sizes in ((looking.THREE, 2, h), (looking.TWO, 3, h + 1)):
        when = on(members)
        # In the second batch rank 0 needs nothing.
        reports = judge.trial(answer, run, *sizes, seed, members=members, when=when, empty=[0])
        refuse_none(reports, when, "the rows after their layers")
        given = Batches(*sizes, len(members), seed)
        calls = list(zip(*(report["calls"] for report in reports), strict=False))
        look_at_values(calls, given, when)
        look_at_traffic(calls, given, when)


Calls = Sequence[Sequence[dict]]  # each rank's reports for each batch


def look_at_values(calls: Calls, given: Batches, when: str) -> None:
    """Check that all ranks are in the same gather, and check each rank's rows after its layers."""
    n, b = given.xs.shape[1:3]
    ways = {
        "ranks in different gathers": lambda did: did["told"],
        "input changed": lambda did: did["changed"],
        "wrong shape": lambda did: did["out"] is None,
    }
    for batch, reports in enumerate(calls, 1):
        SAYS.refuse_each(reports, ways, batch=batch, shape=list(given.xs.shape[2:]), when=when)
    seen = [[did["out"] for did in reports] for reports in calls]
    right = [given.through(call, ways) for call, ways in enumerate(given.wanted)]
    if all(map(looking.all_near, seen, right)):
        return
    looking.refuse_idea(seen[0], looking.ideas(SAYS, ideas(given, n)), when)
    if looking.all_near(seen[0], right[0]):
        raise SAYS("wrong in a later batch", when=when)
    looking.refuse_general(seen[0], right[0], when, sizes={"rows": b, "layers": LAYERS})
    raise SAYS("wrong output", when=when)


def ideas(given: Batches, n: int) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield each rank's result of its first batch under each wrong idea."""
    wanted = given.wanted[0]
    votes, first = [sum(some) for some in zip(*wanted, strict=True)], wanted[0]

    def own(enough: Callable[[int], bool], votes: Sequence[int] = votes) -> list[list[bool]]:
        """Return each rank's wishes for layers with `enough` votes."""
        return [[w and enough(k) for w, k in zip(way, votes, strict=True)] for way in wanted]

    for entry, ways in (
        ("unwanted layer used", [[k > 0 for k in votes]] * n),
        ("only where all agree", own(lambda k: k == n)),
        ("first rank decides", [first] * n),
        ("first rank decides", own(bool, first)),
        ("only where most agree", own(lambda k: k > 1)),
        ("exactly one vote", own(lambda k: k == 1)),
        ("none", own(lambda k: False)),
    ):
        yield entry, given.through(0, ways)
    for entry, layer in MISTAKES.items():
        yield entry, given.through(0, wanted, layer)


def look_at_traffic(calls: Calls, given: Batches, when: str) -> None:
    """Check that only needed gathers and a small message occur, with one full layer at a time."""
    n = given.xs.shape[1]
    piece = -(-given.weights[0].numel() // n) + 1  # and the layer's number
    for batch, reports in enumerate(calls, 1):
        due = sum(map(any, zip(*given.wanted[batch - 1], strict=True)))
        budget = (due * piece + 2 * LAYERS) * looking.ITEM * (n - 1)
        looks = {
            "all gathered at once": lambda did: did["most"] > 1 or did["now"],
            "unneeded gathers": lambda did, due=due: did["gathers"] > due,
            "a message for each layer": lambda did: did["others"] > 1,
            "more bytes": lambda did, budget=budget: did["bytes"] > budget,
            "full copies kept": lambda did: did["copies"],
        }
        SAYS.refuse_each(reports, looks, batch=batch, due=due, budget=budget, when=when)


SAME_WAY = frame.Exercise(judge=judge_same_way, **SAYS.about)
