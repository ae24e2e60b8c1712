"""`reduce_early` of lesson 10: buckets sent during two backward passes of a deep, narrow network.
The ledger shows when each was sent, and the watch the live memory when gradients arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_classroom.judge import bench, frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.looking import ITEM
from course_lessons.lesson_10.descent import Step, bucket, padded, steps
from course_lib.collectives.call import Group
from course_lib.ledger import ledger
from course_lib.memory.lifetimes import StorageWatch
from course_lib.memory.release_wait import wait_until_settled

DEPTH, ROWS, STEPS = 16, 2, 2
LATE, WIDE = 2, 5  # the list index of the layer that runs first; a layer with many inputs
ROOM = 7  # buckets besides the shards: one filling, its gradients, two in transit and arriving
WHOLE = {"all_reduce", "all_gather"}
HOOKS = ("_post_accumulate_grad_hooks", "_backward_hooks")  # where torch stores a parameter's hooks
SAYS = words.Page(__file__, "reduce_early")
Buckets = list[list[Tensor]]


class Net:
    """Layers of uneven widths in sequence, trained by n ranks with buckets of `most`.

    One bucket is exactly full. A middle layer and the last layer are longer. The parameter list has
    two layers before the layer that runs first. The gradients of this layer arrive last, and
    complete buckets must wait for them.
    """

    def __init__(self, width: int, least: int, seed: int, n: int):
        self.seed, made = seed, torch.Generator().manual_seed(seed)
        widths = [width, *(width + (5 * i + seed) % 7 for i in range(DEPTH))]
        behind = [k for a, b in pairwise(widths[-2::-1]) for k in (a, a * b)]
        self.most = next(total for total in accumulate(behind) if total >= least)
        widths[-1] = widths[WIDE] = self.most // width + 2
        self.layers = [nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(widths)]
        self.layers[-1].register_parameter("bias", None)
        for layer in self.layers:
            for p in layer.parameters():
                drawn = torch.randn(p.shape, generator=made, dtype=torch.float64)
                p.data = drawn / layer.in_features**0.5
        listed = [*self.layers[1 : LATE + 1], self.layers[0], *self.layers[LATE + 1 :]]
        self.parameters = [p for layer in listed for p in layer.parameters()]
        self.buckets = plan(self.parameters[::-1], self.most)
        lengths = [sum(p.numel() for p in one) for one in self.buckets]
        self.sent = [length + -length % n for length in lengths]  # elements of each bucket, padded
        self.shard = sum(self.sent) // n * ITEM  # bytes
        self.allowed = self.shard + ROOM * self.most * ITEM  # bytes that may be alive at once
        self.steps = steps(self.parameters, self.loss, range(STEPS), n)

    def loss(self, step: int, rank: int) -> Tensor:
        made = torch.Generator().manual_seed(self.seed * 1009 + 31 * step + rank)
        x = torch.randn(ROWS, self.layers[0].in_features, generator=made, dtype=torch.float64)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().sum()


def plan(parameters: Sequence[Tensor], most: int) -> Buckets:
    """Return buckets by the exercise's rule, for parameters in the given order."""
    buckets: Buckets = [[]]
    for p in parameters:
        if buckets[-1] and sum(q.numel() for q in buckets[-1]) + p.numel() > most:
            buckets.append([])
        buckets[-1].append(p)
    return buckets


def train(function: Callable, group: Group, *sizes: int) -> list[dict]:
    """Return the answer's results in each backward pass, its messages, and the live memory."""
    net, reports, kept = Net(*sizes, group.size()), [], []
    for step in net.steps:
        loss, given = net.loss(step.number, group.rank()), list(net.parameters)
        watch, alive = StorageWatch(), []

        def came(p: Tensor, watch: StorageWatch = watch, alive: list = alive) -> None:
            alive.append(_made(watch, net.allowed))

        hooks = [p.register_post_accumulate_grad_hook(came) for p in given]
        with watch, ledger() as book:
            out, facts = bench.watched(lambda a=loss, b=given: function(a, b, net.most, group))
        for hook in hooks:
            hook.remove()
        listed = isinstance(out, (list, tuple)) and all(map(bench.plain, out))
        tensors = list(out) if listed else []
        storages = [x.untyped_storage() for x in tensors]
        sent = [(r.phase, r.elements) for r in book.records if r.op == "reduce_scatter"]
        report = {
            "kind": bench.kind(out),
            "pieces": [x.detach().clone() for x in tensors] if listed else None,
            "count": len(tensors),
            "came": len(alive),
            "changed": list(map(id, given)) != list(map(id, net.parameters)),
            "spoiled": not all(looking.all_near(now, then) for now, then in kept),
            "left": sum(p.grad is not None for p in net.parameters),
            "sent": [elements for _, elements in sent],
            "late": sum(phase != "backward" for phase, _ in sent),
            "verbs": list(facts["ops"]),
            "messages": sum(facts["ops"].values()),
            "bytes": facts["bytes"],
            "overlap": _overlap(tensors),
            "held": sum({s.data_ptr(): s.nbytes() for s in storages}.values()),
            "alive": max(alive, default=0),
            "hooked": sum(any(getattr(p, kind, None) for kind in HOOKS) for p in net.parameters),
        }
        reports.append(report)
        if report["hooked"] or not listed:
            break
        kept.append((out, report["pieces"]))
        for p in net.parameters:
            p.grad = None
    return reports


def _made(watch: StorageWatch, enough: int) -> int:
    """Return the live bytes that the backward pass has made so far. A backend's thread may hold a
    copy of a message a moment longer, so count again if more than `enough` copies are alive."""
    if (found := sum(one.nbytes() for one in watch.made_and_alive())) > enough:
        wait_until_settled()
        found = sum(one.nbytes() for one in watch.made_and_alive())
    return found


def _overlap(tensors: Sequence[Tensor]) -> bool:
    """Return True if two tensors overlap in memory; adjacent pieces of a buffer do not overlap."""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    return any(stop > start for (_, stop), (start, _) in pairwise(spans))


def judge_early(answer: Answer, judge: Judge) -> None:
    """Try two backward passes on three ranks, then on two ranks that are not the first two."""
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    for members, width, least in (
        (looking.THREE, 29 + seed % 5, 1900),
        (looking.TWO, 31 + seed % 4, 2101),
    ):
        when, net = on(members), Net(width, least, seed, len(members))
        every = judge.trial(answer, train, width, least, seed, members=members, when=when)
        for k, step in enumerate(net.steps):
            reports, where = [of_rank[k] for of_rank in every], f"{when}, in backward {k + 1}"
            look_at_results(reports, net, step, where)
            look_at_the_way(reports, net, where)


def look_at_results(reports: list[dict], net: Net, step: Step, where: str) -> None:
    """Raise the Finding that explains all ranks' shards, if they are wrong."""
    n, seen = len(reports), [one["pieces"] for one in reports]
    right = pieces([bucket(step.sums, one, n) for one in net.buckets], n)
    if None not in seen and looking.all_near([*chain(*seen)], [*chain(*right)]):
        return
    refuse_none(reports, where, "a list with a shard of each bucket")
    form = {
        "no backward": lambda one: one["came"] < len(net.parameters),
        "not a list": lambda one: one["pieces"] is None,
    }
    SAYS.refuse_each(reports, form, parameters=len(net.parameters), where=where)
    gives = ((entry, [*chain(*every)]) for entry, every in ideas_of_pieces(net, step, n))
    head = "The shards are not those of the sum over the ranks. "
    looking.refuse_idea([*chain(*seen)], looking.ideas(SAYS, gives), where, head)
    pairs = [(x, own) for pieces, own in zip(seen, right, strict=True) for x in pieces]
    known = all(any(looking.alike(x, y) for y in own) for x, own in pairs)
    shapes = [x.shape for x in right[0]]
    rest = {
        "buckets that never left": lambda one: known and one["count"] < len(shapes),
        "wrong sending order": lambda one: known and one["count"] == len(shapes),
        "one buffer reused": lambda one: one["overlap"],
        "kept between calls": lambda one: step.number,
        "wrong buckets": lambda one: [x.shape for x in one["pieces"]] != shapes,
        "rounded on the way": lambda one: any(x.dtype != torch.float64 for x in one["pieces"]),
        "wrong shards": lambda one: True,
    }
    SAYS.refuse_each(reports, rest, where=where)


def pieces(flats: Sequence[Tensor], n: int) -> Buckets:  # of every rank
    return [list(of_rank) for of_rank in zip(*(flat.chunk(n) for flat in flats), strict=True)]


def ideas_of_pieces(net: Net, step: Step, n: int) -> Iterator[tuple[str, Buckets]]:
    """Yield each rank's result under each wrong idea."""
    order, cut, forwards = net.parameters[::-1], net.buckets, plan(net.parameters, net.most)

    def flats(cut: Buckets, of: dict = step.sums, n: int = n, each: bool = False) -> list[Tensor]:
        return [bucket(of, one, n, each) for one in cut]

    right, raw = pieces(flats(cut), n), flats(cut, n=1)
    own = [pieces(flats(cut, mine), n)[rank] for rank, mine in enumerate(step.each)]
    yield "a mean", [[x / n for x in one] for one in right]
    yield "not summed", own
    yield "not summed", [[x * n for x in one] for one in own]
    for entry, other in (
        ("filled from the first parameter", flats(forwards)),
        ("filled from the first parameter", flats(forwards[::-1])),
        ("reversed inside buckets", flats([one[::-1] for one in cut])),
        ("list reversed", flats(cut[::-1])),
        ("a bucket for each parameter", flats([[p] for p in order])),
        ("one bucket for all", flats([order])),
        ("exactly full", flats(plan(order, net.most - 1))),
        ("padded one by one", flats(cut, each=True)),
        ("padded in front", [padded(x, n, front=True) for x in raw]),
        ("padded without need", [F.pad(x, (0, n - len(x) % n)) for x in raw]),
    ):
        yield entry, pieces(other, n)
    yield "not sharded", [flats(cut)] * n
    yield "first rank's piece everywhere", right[:1] * n
    yield (
        "padding taken off",
        [
            [x[: max(0, len(flat) - rank * len(x))] for x, flat in zip(own, raw, strict=True)]
            for rank, own in enumerate(right)
        ],
    )


def look_at_the_way(reports: list[dict], net: Net, where: str) -> None:
    """Check that each bucket is sent once, as a reduce-scatter, in the list's order, during the
    backward pass, that all gradients are never alive together, and that none remains."""
    wanted, must = net.sent, net.shard * (len(reports) - 1)
    sent = {
        "all-reduce, then split": lambda one: not one["sent"] and WHOLE & set(one["verbs"]),
        "sent after the backward": lambda one: one["late"],
        "wrong sending order": lambda one: (
            one["sent"] != wanted and sorted(one["sent"]) == sorted(wanted)
        ),
        "unexpected messages": lambda one: one["sent"] != wanted or one["bytes"] > must + 1,
    }
    left = {
        "view of the full bucket": lambda one: one["held"] > net.shard + net.most * ITEM,
        "too much at once": lambda one: one["alive"] > net.allowed,
        "input changed": lambda one: one["changed"],
        "gradients left": lambda one: one["left"],
        "hooks left": lambda one: one["hooked"],
        "one buffer reused": lambda one: one["spoiled"],
    }
    whole = sum(p.numel() for p in net.parameters) * ITEM
    about = {"must": must, "buckets": len(wanted), "shard": net.shard, "allowed": net.allowed}
    for looks in (sent, left):
        SAYS.refuse_each(reports, looks, **about, whole=whole, where=where)


EARLY = frame.Exercise(judge=judge_early, **SAYS.about)
