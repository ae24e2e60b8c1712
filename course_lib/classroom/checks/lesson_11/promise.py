"""`promise` of lesson 11: stage 3 for a stack of layers, within a budget of bytes and memory.

An answer trains two steps, each rank on rows of its own, and is held against the dense stack on all
rows, against the messages of the ledger, and against what the meter finds between the layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_11 import promise_trial as trial
from course_lib.classroom.checks.looking import ITEM, THREE, TWO, counted, fresh_seed, near


class Trial:
    """Three steps of the learner's stack on a group, beside the dense one."""

    def __init__(self, reports: list[dict], sizes: trial.Sizes, seed: int, when: str):
        self.reports, self.sizes, self.when, self.n = reports, sizes, when, len(reports)
        self.layers = len(sizes.widths) - 1
        self.given = trial.numbers(sizes, self.n, seed)
        self.start = self._flats(self.given.weights, self.given.biases)
        self.steps = self._dense()  # (outputs (n, b, out), gradients of each rank's rows)
        self.padded = sum(self.n * trial.cut(flat, self.n)[0].numel() for flat in self.start)

    def piece(self, flat: Tensor, rank: int) -> Tensor:
        return trial.cut(flat, self.n)[rank]

    def _flats(self, weights, biases) -> list[Tensor]:
        return [torch.cat((w.flatten(), b)) for w, b in zip(weights, biases, strict=True)]

    def _dense(self) -> list[tuple[Tensor, list[list[Tensor]]]]:
        weights, biases, steps = list(self.given.weights), list(self.given.biases), []
        for x, dy in zip(self.given.xs, self.given.dys, strict=True):
            outs, alone = [], []
            for r in range(self.n):
                leaves = [t.clone().requires_grad_() for t in (*weights, *biases)]
                y = x[r]
                for w, b in zip(leaves[: self.layers], leaves[self.layers :], strict=True):
                    y = torch.tanh(y @ w.T + b)
                grads = torch.autograd.grad(y, leaves, dy[r])
                outs.append(y.detach())
                alone.append(grads)
            flats = [self._flats(g[: self.layers], g[self.layers :]) for g in alone]
            steps.append((torch.stack(outs), flats))
            total = [sum(parts) for parts in zip(*alone, strict=True)]
            moved = [t - trial.RATE * g for t, g in zip((*weights, *biases), total, strict=True)]
            weights, biases = moved[: self.layers], moved[self.layers :]
        return steps


def judge_promise(answer: Answer, judge: Judge) -> None:
    """Try promise; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    w = 11 + seed % 2
    cases = [
        (THREE, trial.Sizes(2, (w, w + 2, w + 1, w + 3, w))),
        (TWO, trial.Sizes(3, (w + 3, w, w + 1, w + 2, w))),  # not the notebook's first two
    ]
    for members, sizes in cases:
        when, data = on(members), (list(sizes.widths), sizes.b, seed)
        reports = judge.trial(answer, trial.run, *data, members=members, when=when)
        refuse_none(reports, when, "the list of its shards")
        one = Trial(reports, sizes, seed, when)
        for look in LOOKS:
            try:
                look(one)
            except Finding:
                if one.n == 2:  # right on all ranks of the world, and wrong on some of them
                    refuse_world_numbers(answer, one.when)
                raise


def look_at_shards(one: Trial) -> None:
    """A list of one flat leaf a layer, this rank's piece of it, and nothing whole besides."""
    for rank, report in enumerate(one.reports):
        others = set(report["kinds"]) - {"Tensor", "Parameter"}
        if report["kind"] not in ("list", "tuple") or others:
            raise Finding(
                "not a list of tensors",
                f"Rank {rank} got a {report['kind']} back {one.when}; expected is a list with one "
                "tensor for each layer, this rank's shard of it.",
            )
        wanted = [one.piece(flat, rank).numel() for flat in one.start]
        if not report["plain"]:
            raise Finding("not a list of tensors", f"A shard is no dense tensor, {one.when}.")
        if report["shards"] is None:
            whole = [flat.numel() for flat in one.start]
            text = (
                f"The shards on rank {rank} have {report['sizes']} elements {one.when}; expected "
                f"are {wanted}: weight and bias end to end, filled up to a multiple of {one.n}, "
                "cut in equal pieces."
            )
            if sum(report["sizes"]) >= sum(whole):
                raise Finding("not cut", f"{text} You have kept the whole parameters.")
            raise Finding("wrong size", text)
        if not all(report["leaves"]):
            raise Finding(
                "shards that take no gradient",
                f"A shard on rank {rank} is no leaf that requires a gradient, {one.when}: an "
                "optimizer could not train it. `.detach().clone().requires_grad_()`.",
            )
        for got, flat in zip(report["shards"], one.start, strict=True):
            if not near(got, one.piece(flat, rank)):
                raise Finding(
                    "somebody else's piece",
                    f"A shard on rank {rank} does not hold that rank's piece of weight and bias "
                    f"end to end, {one.when}.",
                )


def look_at_values(one: Trial) -> None:
    """Outputs and the shards' gradients of the first step."""
    outs, alone = one.steps[0]
    for rank, report in enumerate(one.reports):
        first = report["steps"][0]
        if not near(first["out"], outs[rank]):
            raise Finding(
                "wrong output",
                f"The output on rank {rank} is not that of the whole stack, {one.when}. Are the "
                "parameters in their places when the layer runs: weight first, then bias, without "
                "the padding?",
            )
        if None in first["grads"]:
            raise Finding(
                "no gradient",
                f"After the backward a shard on rank {rank} has no `.grad`, {one.when}. When all "
                "parameters of a layer have their gradients, send them, and put what comes back "
                "into the shard's `.grad`.",
            )
    total = [sum(parts) for parts in zip(*alone, strict=True)]
    ideas = (
        ("own rows alone", alone, "the gradient of its own rows alone. The ranks have seen other "
         "rows: their gradients have to be summed."),
        ("a mean", [[g / one.n for g in total]] * one.n, f"the sum divided by {one.n}. Asked for "
         "is the sum."),
        ("n times", [[g * one.n for g in total]] * one.n, f"{one.n} times the sum."),
    )  # fmt: skip
    every = [report["steps"][0]["grads"] for report in one.reports]
    fine = [rank for rank, grads in enumerate(every) if _all_near(one, grads, total, rank)]
    for rank, grads in enumerate(every):
        if _all_near(one, grads, total, rank):
            continue
        for name, flats, text in ideas:
            if _all_near(one, grads, flats[rank], rank):
                raise Finding(name, f"What rank {rank} finds in its shards' gradients, {one.when}, "
                                    f"is {text}")  # fmt: skip
        if len(fine) == 1:
            raise Finding(
                "on one rank only",
                f"The gradients are right on rank {fine[0]} alone, {one.when}. Every rank needs "
                "its piece of the sum: a reduce to one rank, or something that one rank does?",
            )
        raise Finding(
            "wrong gradient",
            f"The outputs are right. The gradients of the shards on rank {rank} are not this "
            f"rank's pieces of the sum over all ranks, {one.when}. Had all parameters of the layer "
            "their gradients when you sent them? Were the weights there for the backward?",
        )


def _all_near(one: Trial, grads: list[Tensor], flats: list[Tensor], rank: int) -> bool:
    return all(near(g, one.piece(f, rank)) for g, f in zip(grads, flats, strict=True))


def look_at_memory(one: Trial) -> None:
    """Nothing whole but the layer that is at work."""
    for rank, report in enumerate(one.reports):
        if report["held"]:
            raise Finding(
                "cut, and kept whole",
                f"Values are right. Before the first forward {report['held']} storages as large as "
                f"a whole weight are still in memory on rank {rank}, {one.when}. What still holds "
                "the parameters, or the flat buffer that the shards were cut from? A shard that is "
                "a view keeps all of it.",
            )
        first = report["steps"][0]
        if max(first["in_forward"]) > 1:
            count = f"{max(first['in_forward'])} whole weights are in memory after a layer"
            if max(first["complete"]) <= 1:
                raise Finding(
                    "the graph keeps it",
                    f"Values are right, and the parameters look empty. Yet {count} on rank {rank}, "
                    f"{one.when}: autograd has saved views of them, and a view keeps its storage. "
                    "Take the memory away under the views.",
                )
            raise Finding(
                "not freed behind the forward",
                f"Values are right. In the forward {count} on rank {rank}, {one.when}. After a "
                "layer's forward its parameters are still complete: nothing frees them there.",
            )
        if max(first["in_backward"], default=0) > 2 or first["after"]:
            most = max(*first["in_backward"], first["after"])
            raise Finding(
                "not freed in the backward",
                f"Values are right. In the backward, or after it, up to {most} storages as large "
                f"as a whole weight stay in memory on rank {rank}, {one.when}: weights, or whole "
                "gradients. When a layer's gradient has been sent, neither is needed.",
            )


def look_at_traffic(one: Trial) -> None:
    """A gather for each layer in each direction, and a reduce-scatter."""
    move = one.padded * ITEM * (one.n - 1) / one.n
    for rank, report in enumerate(one.reports):
        forward, backward = (report["steps"][0][way] for way in ("forward", "backward"))
        there, back = forward["ops"], backward["ops"]
        head = (
            f"Values and memory are right. In a step rank {rank} sends {counted(there)} forward "
            f"and {counted(back)} backward {one.when}. "
        )
        if "all_reduce" in back:
            raise Finding(
                "all-reduce, then cut",
                f"{head}An all-reduce gives every rank the whole sum, of which it throws away all "
                "but its piece: twice the bytes of a reduce-scatter.",
            )
        most = {"all_gather": one.layers, "reduce_scatter": one.layers}
        many = any(back.get(op, 0) > count for op, count in most.items())
        if there.get("all_gather", 0) > one.layers or many:
            raise Finding(
                "a message for each parameter",
                f"{head}A layer is one unit: weight and bias are joined end to end, and travel in "
                f"one message. {one.layers} gathers forward; backward as many at most, and as many "
                "reduce-scatters.",
            )
        if forward["bytes"] > move + 1 or backward["bytes"] > 2 * move + 1 or set(back) - set(most):
            raise Finding(
                "over budget",
                f"{head}That is {forward['bytes']} bytes forward and {backward['bytes']} backward; "
                "a gather in each direction and a reduce-scatter need less.",
            )


def look_at_steps(one: Trial) -> None:
    """The later steps, with the shards that have moved; in the last there are two stacks."""
    for rank, report in enumerate(one.reports):
        for step in range(1, len(one.steps)):
            outs, alone = one.steps[step]
            total = [sum(parts) for parts in zip(*alone, strict=True)]
            did, last = report["steps"][step], step == len(one.steps) - 1
            if (
                near(did["out"], outs[rank])
                and None not in did["grads"]
                and _all_near(one, did["grads"], total, rank)
                and not (last and report["again"] != one.layers)
            ):
                continue
            if last:
                raise Finding(
                    "two stacks at once",
                    f"With one stack all is right. With a second one at work at the same time, the "
                    f"first is not the dense one on rank {rank}, {one.when}. What belongs to a "
                    "stack stays with it: not in a global, a class or a default argument.",
                )
            raise Finding(
                "another second step",
                "Step 1 is right. In step 2, with shards that have moved, output or gradients on "
                f"rank {rank} are not the dense ones, {one.when}. Do you gather the shards that "
                "you gave back, or a copy of them? Does something of step 1 remain?",
            )


LOOKS = (look_at_shards, look_at_values, look_at_memory, look_at_traffic, look_at_steps)
PROMISE = Exercise(
    name="promise",
    title="The hooks and their frees",
    points=5,
    judge=judge_promise,
    when_right=(
        "Outputs, gradients and three steps of training are those of the whole stack on all ranks' "
        "rows, on two ranks and on three. Between any two layers nothing whole was in memory, "
        "forward or backward, and between steps each rank held its shards alone. Three moves of "
        "the parameters went over the wire: that is stage 3."
    ),
    hints=(
        "Four moments: before a layer's forward, after it, before its backward, after its "
        "backward. Write a function `gather(unit)` and a function `free(unit)` first, and call "
        "them by hand on one layer.",
        "`free` has two parts. The parameters let go of the buffer; and the buffer's memory goes, "
        "under every view that the graph has kept. The lesson has a cell for that.",
        "`register_forward_pre_hook` and `register_forward_hook` of the layer. The second gets the "
        "layer's output: `output.register_hook(f)` calls f when a gradient reaches it, which is "
        "before the layer's backward.",
        "`parameter.register_post_accumulate_grad_hook(f)` calls f(parameter) when its gradient "
        "has come. A layer has two parameters: act when the second has come. Join, reduce-scatter, "
        "into the shard's `.grad`, then let go of the whole gradients, and free.",
    ),
)
