"""`promise` of lesson 11: stage 3 for a stack of layers, compared with the dense stack on all rows.
The ledger checks the messages, and the meter counts full weights between the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_classroom.judge import bench, frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on, refuse_none
from course_lessons.lesson_11.meter import Meter
from course_lib.collectives.call import Group
from course_lib.memory.lifetimes import StorageWatch

STEPS, RATE = 3, 0.1  # in the third step a second stack is alive
SENT = {"all_gather", "reduce_scatter"}  # in a backward
SAYS = words.Page(__file__, "promise")


class Dense:
    """A dense stack with these widths before and after each layer, and b rows for each of n ranks,
    identical on every rank and in the judge's process."""

    def __init__(self, widths: list[int], b: int, n: int, seed: int):
        made = torch.Generator().manual_seed(seed)
        draw = partial(torch.randn, generator=made, dtype=torch.float64)
        self.n, self.widths = n, list(pairwise(widths))
        self.start = [draw(narrow * wide + wide) / 3 for narrow, wide in self.widths]
        self.xs, self.dys = (draw(STEPS, n, b, widths[k]) for k in (0, -1))

    def parts(self, flats: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's (weight, bias), as views of the layer's flat tensor."""
        pairs = zip(self.widths, flats, strict=True)
        return [(one[:-wide].view(wide, narrow), one[-wide:]) for (narrow, wide), one in pairs]

    def layers(self) -> list[nn.Linear]:
        layers = [nn.Linear(1, 1, device="meta") for _ in self.start]
        for layer, parts in zip(layers, self.parts(self.start), strict=True):
            layer.weight, layer.bias = (nn.Parameter(t.clone()) for t in parts)
        return layers

    @cached_property
    def steps(self) -> list[tuple[list[Tensor], list[Sequence[Tensor]]]]:
        """Return (outputs, flat gradients) for all ranks' rows, in each training step."""
        flats, steps = self.start, []
        for xs, dys in zip(self.xs, self.dys, strict=True):
            leaves = [one.clone().requires_grad_() for one in flats]
            layers = [partial(F.linear, weight=w, bias=bias) for w, bias in self.parts(leaves)]
            outs = [through(layers, x) for x in xs]
            pairs = zip(outs, dys, strict=True)
            alone = [torch.autograd.grad(y, leaves, dy, retain_graph=True) for y, dy in pairs]
            steps.append(([y.detach() for y in outs], alone))
            flats = [one - RATE * sum(grads) for one, *grads in zip(flats, *alone, strict=True)]
        return steps

    def total(self, step: int) -> list[Tensor]:
        """Return the gradients summed over the ranks, as a flat tensor for each layer."""
        return [sum(parts) for parts in zip(*self.steps[step][1], strict=True)]

    def pieces(self, flats: Sequence[Tensor], rank: int) -> list[Tensor]:
        """Return a rank's piece of each layer, padded with zeros."""
        return [F.pad(one, (0, -one.numel() % self.n)).chunk(self.n)[rank] for one in flats]

    def right(self, step: int, report: dict) -> bool:
        """Return True if a rank's output and its shards' gradients match the dense stack's."""
        did, rank = report["steps"][step], report["rank"]
        wanted = [self.steps[step][0][rank], *self.pieces(self.total(step), rank)]
        return looking.all_near([did["out"], *did["grads"]], wanted)


def through(layers: list[Callable], x: Tensor, after_layer: Callable = lambda y: None) -> Tensor:
    """Return the stack's output for x, with a tanh after each layer."""
    for layer in layers:
        x = torch.tanh(layer(x))
        after_layer(x)
    return x


def run(function: Callable, group: Group, widths: list[int], b: int, seed: int) -> dict:
    """Run three steps of SGD with the shards from `function(layers, group)`; between layers, in
    both directions, the meter counts tensors as large as a full weight."""
    dense, rank = Dense(widths, b, group.size(), seed), group.rank()
    wanted = [one.numel() for one in dense.pieces(dense.start, rank)]
    with StorageWatch() as watch:
        layers = dense.layers()
        meter = Meter(watch, min(weight.nbytes for weight, _ in dense.parts(dense.start)))
        out, _ = bench.watched(lambda: function(layers, group))
        report = {"rank": rank, "kind": type(out).__name__, "sizes": None, "steps": []}
        kinds = {type(one) for one in out} if isinstance(out, (list, tuple)) else {None}
        if not (kinds <= {Tensor, nn.Parameter} and all(map(bench.plain, out))):
            return report
        shards, report["shards"] = list(out), None
        report["sizes"] = [one.numel() for one in shards]
        if report["sizes"] != wanted:
            return report
        report["shards"] = [one.detach().flatten().clone() for one in shards]
        report["leaves"] = all(one.requires_grad and one.is_leaf for one in shards)
        report["held"] = meter.now(0)
        if not report["leaves"]:
            return report
        for step, (x, dy) in enumerate(zip(dense.xs[:, rank], dense.dys[:, rank], strict=True)):
            beside = dense.layers() if step == STEPS - 1 else []
            if beside:
                other, _ = bench.watched(lambda made=beside: function(made, group))
                report["again"] = len(other) if isinstance(other, (list, tuple)) else None
            report["steps"].append(_step(layers, shards, x, dy, meter, beside))
            if None in report["steps"][-1]["grads"]:
                break
            with torch.no_grad():
                for one in shards:
                    one -= RATE * one.grad.view_as(one)
                    one.grad = None
    return {**report["steps"][0], **report}


def _step(layers: list, shards: list, x: Tensor, dy: Tensor, meter: Meter, beside: list) -> dict:
    """Run a step, with a second stack's forward pass between its forward and backward passes."""
    in_forward, in_backward = [], []
    complete = []  # number of layers with a complete weight, after each layer's forward

    def after_layer(y: Tensor) -> None:
        y.register_hook(lambda grad: in_backward.append(meter.now(2)))
        in_forward.append(meter.now(1))
        weights = [layer.weight for layer in layers if layer.weight.numel()]
        complete.append(sum(w.untyped_storage().nbytes() > 0 for w in weights))

    start = x.clone().requires_grad_()
    y, there = bench.watched(lambda: through(layers, start, after_layer))
    if beside:
        more, _ = bench.watched(lambda: through(beside, 1 - x))
    _, back = bench.watched(lambda: y.backward(dy))
    if beside:
        bench.watched(lambda: more.backward(dy))
    ops = (there["ops"].get("all_gather", 0), *(back["ops"].get(op, 0) for op in SENT))
    return {
        "out": y.detach().clone(),
        "grads": [None if s.grad is None else s.grad.detach().flatten().clone() for s in shards],
        "forward": max(in_forward),
        "complete": max(complete),
        "backward": max(in_backward, default=0),
        "after": (after := meter.now(0)),
        "stay": max(after, *in_backward),
        "told": [looking.counted(way["ops"]) for way in (there, back)],
        "back": back["ops"],
        "messages": max(ops),
        "bytes": [there["bytes"], back["bytes"]],
    }


def judge_promise(answer: Answer, judge: Judge) -> None:
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    w = 11 + seed % 2
    for members, b, widths in (
        (looking.THREE, 2, [w, w + 2, w + 1, w + 3, w]),
        (looking.TWO, 3, [w + 3, w, w + 1, w + 2, w]),
    ):
        when = on(members)
        reports = judge.trial(answer, run, widths, b, seed, members=members, when=when)
        refuse_none(reports, when, "the list of its shards")
        dense = Dense(widths, b, len(members), seed)
        look_at_values(reports, dense, when)
        look_at_the_way(reports, dense, when)


def look_at_values(reports: list[dict], dense: Dense, when: str) -> None:
    """Check that each layer has a flat leaf, a rank's piece, and check the first step's values."""
    n, (outs, alone), total = dense.n, dense.steps[0], dense.total(0)
    whole = sum(one.numel() for one in dense.start)
    pieces = [dense.pieces(dense.start, rank) for rank in range(n)]
    looks = {
        "not a list of tensors": lambda r: r["sizes"] is None,
        "not sharded": lambda r: r["shards"] is None and sum(r["sizes"]) >= whole,
        "wrong size": lambda r: r["shards"] is None,
        "shards that take no gradient": lambda r: not r["leaves"],
        "wrong rank's piece": lambda r: not looking.all_near(r["shards"], pieces[r["rank"]]),
        "wrong output": lambda r: not looking.near(r["out"], outs[r["rank"]]),
        "no gradient": lambda r: None in r["grads"],
    }
    wanted = [one.numel() for one in pieces[0]]
    SAYS.refuse_each(reports, looks, wanted=wanted, n=n, when=when)
    fine = [dense.right(0, report) for report in reports]
    if all(fine):
        return
    given = {
        "only own rows": alone,
        "a mean": [[g / n for g in total]] * n,
        "n times": [[g * n for g in total]] * n,
    }
    gives = {
        entry: [torch.cat(dense.pieces(own, rank)) for rank, own in enumerate(flats)]
        for entry, flats in given.items()
    }
    seen = [torch.cat(report["grads"]) for report in reports]
    looking.refuse_idea(seen, looking.ideas(SAYS, gives, n=n), when)
    if fine.count(True) == 1:
        raise SAYS("on one rank only", rank=fine.index(True), when=when)
    raise SAYS("wrong gradient", rank=fine.index(False), when=when)


def look_at_the_way(reports: list[dict], dense: Dense, when: str) -> None:
    """Check that only the active layer is full, with two gathers and one reduce-scatter per layer.
    Then check later steps, with changed shards and, in the last step, two stacks."""
    layers = len(dense.start)
    piece = sum(one.numel() for one in dense.pieces(dense.start, 0))
    move = piece * looking.ITEM * (dense.n - 1)
    memory = {
        "sharded, full copy kept": lambda r: r["held"],
        "the graph keeps it": lambda r: r["forward"] > 1 and r["complete"] <= 1,
        "not freed after the forward": lambda r: r["forward"] > 1,
        "not freed in the backward": lambda r: r["backward"] > 2 or r["after"],
    }
    traffic = {
        "all-reduce, then split": lambda r: "all_reduce" in r["back"],
        "a message for each parameter": lambda r: r["messages"] > layers,
        "over budget": lambda r: (
            r["bytes"][0] > move + 1 or r["bytes"][1] > 2 * move + 1 or set(r["back"]) - SENT
        ),
    }
    later = {
        "wrong second step": lambda r: not dense.right(1, r),
        "two stacks at once": lambda r: not dense.right(2, r) or r["again"] != layers,
    }
    for looks in (memory, traffic, later):
        SAYS.refuse_each(reports, looks, layers=layers, when=when)


PROMISE = frame.Exercise(judge=judge_promise, **SAYS.about)
