"""`token_mean_step` of lesson 08: one mean over all tokens, regardless of their ranks.

Every rank can draw all ranks' unequal, padded batches, so it compares the answer with the right
loss and gradient, and with each wrong idea's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_classroom.judge import bench, looking
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import refuse_none
from course_classroom.judge.words import Page
from course_lessons.lesson_08.model import judged
from course_lib.ledger import forms

WORDS, WIDE, MICRO = 17, 15, 4  # all sizes differ: ranks, rows, tokens per row, and these
CLOSE, ROUGHLY, HALF = 1e-9, 1e-6, 5e-3  # relative errors in float64, float32 and bfloat16
GRADIENTS = looking.ITEM * WORDS * (2 * WIDE + 1)  # bytes
SLACK = looking.ITEM * 16  # bytes in addition to the gradients: sums and counts
SAYS = Page(__file__, "token_mean_step")
Batch = tuple[Tensor, Tensor]


class Net(nn.Module):
    """A model from ids to logits that records the number of rows it received."""

    def __init__(self, seed: int):
        super().__init__()
        made = torch.Generator().manual_seed(seed)
        shapes = {"table": (WORDS, WIDE), "weight": (WORDS, WIDE), "bias": (WORDS,)}
        for name, shape in shapes.items():
            numbers = torch.randn(shape, generator=made, dtype=torch.float64)
            self.register_parameter(name, nn.Parameter(numbers))
        self.rows = 0

    def forward(self, ids: Tensor) -> Tensor:  # (b, s) -> (b, s, WORDS)
        self.rows += len(ids)
        return F.linear(torch.tanh(self.table[ids]), self.weight, self.bias)


def batches(seed: int, n: int, step: int) -> list[list[Batch]]:
    """Draw each rank's micro-batches. One micro-batch and, in step 1, the last rank lack tokens."""
    made = torch.Generator().manual_seed(seed * 31 + step)
    found = []
    for rank in range(n):
        own = []
        for micro in range(MICRO):
            b, s = 1 + 4 * ((rank + micro) % 2), 6 + micro + 2 * rank
            ids, targets = torch.randint(WORDS, (2, b, s), generator=made).unbind()
            targets = targets.clone()
            lengths = torch.randint(1, s, (b,), generator=made)
            targets[torch.arange(s) >= lengths[:, None]] = -100
            if (rank == 0 and micro == 1) or (rank == n - 1 and step == 1):
                targets[:] = -100
            own.append((ids, targets))
        found.append(own)
    return found


def train(function: Callable, group: dist.ProcessGroup, seed: int) -> list[dict]:
    """Run three SGD steps with the answer and one in float32; compare each with one process.

    Before the third step's gradients are examined, the answer runs on a different model.
    """
    rank, net, steps = group.rank(), Net(seed), []
    for step in range(4):
        net = net if step < 3 else net.float()
        data = batches(seed, group.size(), step)
        steps.append(_step(function, net, data, rank, group, again=step == 2))
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * (0 if p.grad is None else p.grad)
    return steps


def _step(
    function: Callable,
    net: Net,
    data: list[list[Batch]],
    rank: int,
    group: dist.ProcessGroup,
    again: bool,
) -> dict:
    losses, gradients = readings(_twin(net), data, rank)
    right = gradients["right"][0]
    bound = CLOSE if right.dtype == torch.float64 else 1e-4
    net.zero_grad()
    net.rows, other, weights = 0, _twin(net), [p.detach().clone() for p in net.parameters()]
    given = [(ids.clone(), targets.clone()) for ids, targets in data[rank]]
    out, facts = bench.watched(lambda: function(net, given, group))
    missing = next((name for name, p in net.named_parameters() if p.grad is None), "")
    if missing:
        return {"missing": missing}
    rows, loss = net.rows, bench.number(out)
    grads = {name: p.grad.flatten().clone() for name, p in net.named_parameters()}
    flat = torch.cat(list(grads.values()))
    parts = zip(grads.items(), right.split([len(g) for g in grads.values()]), strict=True)
    left = "" if net.training else "in evaluation mode"
    left = left if all(p.requires_grad for p in net.parameters()) else "without requires_grad"
    net.train().requires_grad_()
    if again:
        bench.watched(lambda: function(other, data[rank][1:], group))
    same = map(torch.equal, sum(given, ()), sum(data[rank], ()))
    return {
        "kind": type(out).__name__,
        "missing": "",
        "loss": loss,
        "gradient": flat.double(),
        "nan": loss != loss or bool(flat.isnan().any()),
        "ideas": {
            "loss": _those(loss, losses, max(bound, ROUGHLY)),  # float32 is enough for logging
            "gradient": _those(flat, gradients, bound),
        },
        "right": {"loss": losses["right"][0].double(), "gradient": right.double()},
        "fine": [name for (name, g), part in parts if close(g, part, bound)],
        "roughly": close(flat, right, HALF),
        "overwritten": not torch.equal(
            torch.cat([p.grad.flatten() for p in net.parameters()]), flat
        ),
        "moved": not all(map(torch.equal, weights, net.parameters())),
        "left": left,
        "rows": rows,
        "own": sum(len(ids) for ids, _ in data[rank]),
        "changed": not (len(given) == len(data[rank]) and all(same)),
        "bytes": facts["bytes"],
    }


def _twin(net: Net) -> Net:
    """Return a new model with the same weights, without an answer's hooks or attributes."""
    twin = Net(0).to(next(net.parameters()).dtype)
    twin.load_state_dict({name: p.detach() for name, p in net.named_parameters()})
    return twin


def _those(seen: Tensor | float | None, ideas: dict[str, tuple], bound: float) -> list[str]:
    """Return the ideas, right or wrong, that give the observed value in at least one variant."""
    if seen is None:
        return []
    return [name for name, ways in ideas.items() if any(close(seen, x, bound) for x in ways)]


def close(got: Tensor | float, want: Tensor, bound: float) -> bool:
    off = torch.as_tensor(got, dtype=torch.float64) - want
    return bool(off.abs().max() <= bound * max(1.0, float(want.abs().max())))


def readings(net: Net, data: list[list[Batch]], rank: int) -> tuple[dict, dict]:
    """Return this rank's loss and flat gradient, by the right idea and by each wrong idea."""
    targets = [[t for _, t in own] for own in data]
    count = _counted(targets, lambda t: t != -100)
    zero = _counted(targets, lambda t: t > 0).sum()
    places = _counted(targets, lambda t: t == t).sum()
    later = _counted(targets, lambda t: t[:, 1:] != -100).sum()
    n, k, total, last = len(data), MICRO, count.sum(), count[:, -1]

    def by(x: Tensor, shifted: Tensor, own_alone: str) -> dict[str, tuple[Tensor, ...]]:
        """Return results by idea, from token sums of each micro-batch in shape (n, micro, …)."""
        some = count.clamp(min=1).view(n, k, *[1] * (x.dim() - 2))
        ranks = count.sum(1).clamp(min=1).view(n, *[1] * (x.dim() - 2))
        everything, own, moved = x.sum((0, 1)), x[rank].sum(0), shifted.sum((0, 1))
        parts = (ranks[rank], ranks.max(), last.sum(), last[rank].clamp(min=1))
        by_ranks, means, mean = x.sum(1) / ranks, x / some, everything / total
        first = x[:, 0].sum(0)
        return {
            "right": (mean,),
            own_alone: (own / ranks[rank], own / total, means[rank].mean(0), own),
            "mean of means": (
                *(means.mean((0, 1)), means.sum(1).mean(0), means.sum((0, 1))),
                *(by_ranks.mean(0), by_ranks.sum(0)),
            ),
            "a sum": (everything,),
            "padding counted": (everything / places,),
            "an entry taken for padding": (everything / zero,),
            "divided by the ranks as well": (mean / n,),
            "counted n times": (mean * n,),
            "counted for each micro-batch": (mean * k,),
            "divided by the micro-batches as well": (mean / k,),
            "divided by its own tokens": tuple(everything / part for part in parts),
            "targets shifted": (moved / later, moved / total),
            "only the last micro-batch": (x[:, -1].sum(0) / total,),
            "only the first micro-batch": (first / total, first / count[:, 0].sum()),
            "no backward": (everything * 0,),
        }

    own_alone = ("a rank's own loss", "gradients not summed")
    sums = zip(_sums(net, data, 0), _sums(net, data, 1), own_alone, strict=True)
    return tuple(by(*each) for each in sums)


def _sums(net: Net, data: list[list[Batch]], shift: int) -> tuple[Tensor, Tensor]:
    """Return losses summed over tokens (n, micro), and their gradients (n, micro, parameters)."""
    losses, gradients = [], []
    for ids, targets in (batch for own in data for batch in own):
        logits = net(ids)[:, : ids.shape[1] - shift].flatten(0, 1)
        loss = F.cross_entropy(logits, targets[:, shift:].flatten(), reduction="sum")
        found = torch.autograd.grad(loss, list(net.parameters()))
        losses.append(loss.detach())
        gradients.append(torch.cat([g.flatten() for g in found]))
    return tuple(torch.stack(x).unflatten(0, (len(data), -1)) for x in (losses, gradients))


def _counted(targets: list[list[Tensor]], which: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the number of positions at which a condition is true, in shape (n, micro)."""
    return torch.tensor([[int(which(t).sum()) for t in own] for own in targets]).double()


def look(reports: list[dict], where: str, step: int) -> None:
    where = f"{where}{', with a model in float32' * (step == 3)}"
    once, beside = (forms.all_reduce(len(reports), many) for many in (GRADIENTS, SLACK))
    before = {
        "no gradients": lambda r: r["missing"],
        "rows of others": lambda r: r["rows"] > r["own"],
        "input changed": lambda r: r["changed"],
        "mean of an empty batch": lambda r: r["nan"],
    }
    SAYS.refuse_each(reports, before, where=where)
    refuse_none(reports, where, "the loss")
    SAYS.refuse_each(reports, {"not a number": lambda r: r["loss"] is None}, where=where)
    _look_at_values(reports, "gradient", where)
    _look_at_values(reports, "loss", where)
    after = {
        "sent for each micro-batch": lambda r: r["bytes"] >= 2 * once,
        "too much sent": lambda r: r["bytes"] > once + beside,
        "wrong weights": lambda r: r["moved"],
        "model changed": lambda r: r["left"],
        "one buffer for two results": lambda r: r["overwritten"],
    }
    SAYS.refuse_each(reports, after, where=where, once=once)


def _look_at_values(reports: Sequence[dict], what: str, where: str) -> None:
    """Raise a Finding if some rank's loss or gradient differs from one process's, with an idea that
    explains all ranks if there is one."""
    first, *others = (report["ideas"][what] for report in reports)
    ideas = [idea for idea in first if all(idea in those for those in others)]
    if "right" in ideas:
        return
    head = {
        "gradient": "The gradient is not that of the mean over all tokens",
        "loss": "The gradients are correct, but the loss is wrong",
    }[what]
    if ideas:
        name, text = SAYS.of(ideas[0], k=MICRO)
        raise Finding(name, f"{head} {where}. {text}")
    of_gradients = what == "gradient"
    fine = set.intersection(*(set(report["fine"]) for report in reports))
    about = {"head": f"{head} {where}.", "fine": " and ".join(sorted(fine))}
    SAYS.refuse({"only some parameters": of_gradients and fine}, **about)
    found, right = [r[what] for r in reports], [r["right"][what] for r in reports]
    looking.refuse_general(found, right, where, sizes={"micro-batches": MICRO}, what=what)
    roughly = of_gradients and all(report["roughly"] for report in reports)
    holds = {"rounded on the way": roughly, "wrong gradients": of_gradients, "wrong loss": True}
    SAYS.refuse(holds, **about)


TRIALS = ((train, looking.THREE, [2], ""), (train, looking.TWO, [1], ""))  # the last may be empty
MEAN = Exercise(judge=judged(look, *TRIALS), **SAYS.about)
