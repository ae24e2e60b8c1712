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
from course_lib.classroom.checks.words import Words

SAYS = Words("""
not a list of tensors #1: Rank {rank} got a {kind} back {when}; expected is a list with one tensor
  for each layer.
not a list of tensors #2: A shard is no dense tensor, {when}.
not cut: The shards on rank {rank} have {sizes} elements {when}; expected are {wanted}. You have
  kept the whole parameters.
wrong size: The shards on rank {rank} have {sizes} elements {when}; expected are {wanted}: weight
  and bias end to end, filled up to a multiple of {n}, cut in equal pieces.
shards that take no gradient: A shard on rank {rank} is no leaf that requires a gradient, {when}: no
  optimizer could train it. `.detach().clone().requires_grad_()`.
somebody else's piece: A shard on rank {rank} does not hold that rank's piece of weight and bias end
  to end, {when}.
wrong output: The output on rank {rank} is not that of the whole stack, {when}. Are the parameters
  in their places when the layer runs: weight first, then bias, without the padding?
no gradient: After the backward a shard on rank {rank} has no `.grad`, {when}. When all parameters
  of a layer have theirs, send them, and put what comes back there.
own rows alone: The shards' gradients are those of each rank's own rows alone. The ranks have seen
  other rows: their gradients have to be summed.
a mean: The shards' gradients are the sum divided by {n}. Asked for is the sum.
n times: The shards' gradients are {n} times the sum.
on one rank only: The gradients are right on rank {rank} alone, {when}. Every rank needs its piece
  of the sum: a reduce to one rank?
wrong gradient: The outputs are right. The gradients of the shards on rank {rank} are not this
  rank's pieces of the sum over all ranks, {when}. Had all parameters their gradients when you sent
  them? Were the weights there for the backward?
cut, and kept whole: Values are right. Before the first forward {held} storages as large as a whole
  weight are in memory on rank {rank}, {when}. What still holds the parameters, or the flat buffer?
  A shard that is a view keeps all of it.
the graph keeps it: Values are right, and the parameters look empty. Yet {forward} whole weights are
  in memory after a layer on rank {rank}, {when}: autograd has saved views, and a view keeps its
  storage. Take the memory away under the views.
not freed behind the forward: Values are right. In the forward {forward} whole weights are in memory
  after a layer on rank {rank}, {when}. Nothing frees the parameters after a layer's forward.
not freed in the backward: Values are right. In the backward, or after it, up to {backward} storages
  as large as a whole weight stay in memory on rank {rank}, {when}: weights, or whole gradients.
  Neither is needed when a gradient has been sent.
all-reduce, then cut: {head}An all-reduce gives every rank the whole sum, to be thrown away but for
  its piece: twice the bytes of a reduce-scatter.
a message for each parameter: {head}Weight and bias are joined end to end, and travel in one
  message: {layers} gathers forward; backward as many at most, and as many reduce-scatters.
over budget: {head}That is {there} bytes forward and {back} backward, more than a gather in each
  direction and a reduce-scatter.
two stacks at once: With one stack all is right. With a second at work at the same time, the first
  is not the dense one on rank {rank}, {when}. What belongs to a stack stays with it: not in a
  global, a class or a default argument.
another second step: Step 1 is right. In step 2, with shards that have moved, output or gradients on
  rank {rank} are not the dense ones, {when}. Do you gather the shards that you gave back, or a
  copy? Does something of step 1 remain?
""")
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
