"""What runs on the judge's ranks for `token_mean_step`: three steps on unequal, padded batches.

Every rank can make all ranks' batches, so the right loss and gradient, and those of each known
wrong idea, stand beside what the answer gave. Lesson 08.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.classroom.checks import bench

WORDS, WIDE, MICRO = 17, 15, 4  # no two sizes are equal: of ranks, rows, tokens in a row, these
CLOSE, ROUGHLY = 1e-9, 1e-6  # float64, relative to the largest number; float32
Batch = tuple[Tensor, Tensor]


class Net(nn.Module):
    """Ids in, logits out; it notes how many rows it was shown."""

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
    """The micro-batches of each rank. One has no token at all; in step 1 the last rank has none."""
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


def train(function: Callable, group: dist.ProcessGroup, seed: int) -> dict:
    """Three steps of SGD by the answer, and the same by one process; then one in float32.

    Before the last step's gradients are looked at, the answer is used for another model.
    """
    n, rank = group.size(), group.rank()
    mine = Net(seed)
    whole = copy.deepcopy(mine)
    steps = []
    for step in range(3):
        data = batches(seed, n, step)
        steps.append(_step(function, mine, data, rank, group, again=step == 2))
        whole.zero_grad()
        _loss(whole, [batch for own in data for batch in own]).backward()
        with torch.no_grad():
            for net in (mine, whole):
                for p in net.parameters():
                    if p.grad is not None:
                        p -= 0.1 * p.grad
    gap = max(
        float((a - b).abs().max())
        for a, b in zip(mine.parameters(), whole.parameters(), strict=True)
    )
    steps.append(_step(function, mine.float(), batches(seed, n, 3), rank, group))
    return {"steps": steps, "gap": gap}


def _loss(net: Net, data: list[Batch]) -> Tensor:
    """The mean over all tokens of these batches, which one process would compute."""
    total = sum(
        F.cross_entropy(net(i).flatten(0, 1), t.flatten(), reduction="sum") for i, t in data
    )
    return total / sum((t != -100).sum() for _, t in data)


def _step(
    function: Callable,
    net: Net,
    data: list[list[Batch]],
    rank: int,
    group: dist.ProcessGroup,
    again: bool = False,
) -> dict:
    wanted_loss, wanted = readings(_twin(net), data, rank)
    single = next(net.parameters()).dtype == torch.float32
    bound = 1e-4 if single else CLOSE
    net.zero_grad()
    net.rows, other, weights = 0, _twin(net), [p.detach().clone() for p in net.parameters()]
    given = [(ids.clone(), targets.clone()) for ids, targets in data[rank]]
    out, facts = bench.watched(lambda: function(net, given, group))
    rows, flat, loss = net.rows, _flat(net), bench.number(out)
    left = "" if net.training else "in evaluation mode"
    left = left if all(p.requires_grad for p in net.parameters()) else "without requires_grad"
    net.train().requires_grad_()
    if again:
        bench.watched(lambda: function(other, data[rank][1:], group))
    same = map(torch.equal, sum(given, ()), sum(data[rank], ()))
    return {
        "kind": type(out).__name__,
        "loss": loss,
        "losses": _those(loss, wanted_loss, max(bound, ROUGHLY)),  # float32 will do for a log
        "missing": [name for name, p in net.named_parameters() if p.grad is None],
        "nan": flat is not None and bool(flat.isnan().any()),
        "gradients": _those(flat, wanted, bound),
        "flat": None if flat is None else flat.double(),
        "wanted": (wanted_loss["right"].double(), wanted["right"].double()),
        "fine": _fine(net, wanted["right"], bound),
        "overwritten": flat is not None and not torch.equal(_flat(net), flat),
        "moved": not all(map(torch.equal, weights, net.parameters())),
        "left": left,
        "rows": rows,
        "own rows": sum(len(ids) for ids, _ in data[rank]),
        "changed": not (len(given) == len(data[rank]) and all(same)),
        "bytes": facts["bytes"],
        "numbers": sum(p.numel() for p in net.parameters()),
        "tokens": sum(int((t != -100).sum()) for _, t in data[rank]),
    }


def _twin(net: Net) -> Net:
    """Another model with the same weights, and nothing else that an answer may have left in it."""
    twin = Net(0).to(next(net.parameters()).dtype)
    twin.load_state_dict({name: p.detach() for name, p in net.named_parameters()})
    return twin


def _those(seen: Tensor | float | None, ideas: dict[str, Tensor], bound: float) -> list[str]:
    """The ideas that give what was seen, the right one among them."""
    return [] if seen is None else [name for name, x in ideas.items() if close(seen, x, bound)]


def _flat(net: Net) -> Tensor | None:
    """A copy of all gradients in one tensor; None where one is missing."""
    grads = [p.grad for p in net.parameters()]
    return None if any(g is None for g in grads) else torch.cat([g.flatten() for g in grads])


def _fine(net: Net, wanted: Tensor, bound: float) -> list[str]:
    """The parameters whose gradient is right."""
    named = list(net.named_parameters())
    parts = zip(named, wanted.split([p.numel() for _, p in named]), strict=True)
    return [
        name for (name, p), part in parts
        if p.grad is not None and close(p.grad.flatten(), part, bound)
    ]  # fmt: skip


def readings(
    net: Net, data: list[list[Batch]], rank: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The loss and the flat gradient on this rank by the right rule and by each wrong one."""
    losses, gradients, counts, places = [], [], [], []
    for own in data:
        row = []
        for ids, targets in own:
            loss = F.cross_entropy(net(ids).flatten(0, 1), targets.flatten(), reduction="sum")
            found = torch.autograd.grad(loss, list(net.parameters()))
            row.append((loss.detach(), torch.cat([g.flatten() for g in found])))
        losses.append(torch.stack([loss for loss, _ in row]))
        gradients.append(torch.stack([g for _, g in row]))
        counts.append(torch.tensor([int((t != -100).sum()) for _, t in own]))
        places.append(sum(t.numel() for _, t in own))
    count = torch.stack(counts).double()  # (n, micro)

    def by(x: Tensor) -> dict[str, Tensor]:  # (n, micro, …)
        n, k = x.shape[:2]
        some = count.clamp(min=1).view(n, k, *[1] * (x.dim() - 2))
        ranks = count.sum(1).clamp(min=1).view(n, *[1] * (x.dim() - 2))
        total, all_of_it = count.sum(), x.sum((0, 1))
        return {
            "right": all_of_it / total,
            "mean of means": (x / some).mean((0, 1)),
            "mean of micro-means, by rank": (x / some).sum(1).mean(0),
            "micro-means added": (x / some).sum((0, 1)),
            "mean of rank means": (x.sum(1) / ranks).mean(0),
            "rank means added": (x.sum(1) / ranks).sum(0),
            "a sum": all_of_it,
            "padding counted": all_of_it / sum(places),
            "divided by n as well": all_of_it / total / n,
            "times n": all_of_it / total * n,
            "times k": all_of_it / total * k,
            "divided by k as well": all_of_it / total / k,
            "divided by its own tokens": all_of_it / ranks[rank],
            "own mean": x[rank].sum(0) / ranks[rank],
            "own part": x[rank].sum(0) / total,
            "own micro-means": (x[rank] / some[rank]).mean(0),
            "own sum": x[rank].sum(0),
            "the last micro-batch": x[:, -1].sum(0) / total,
            "the first micro-batch": x[:, 0].sum(0) / total,
            "the first one's mean": x[:, 0].sum(0) / count[:, 0].sum(),
            "nothing": all_of_it * 0,
        }

    return by(torch.stack(losses)), by(torch.stack(gradients))


def close(got: Tensor | float, want: Tensor, bound: float = CLOSE) -> bool:
    off = torch.as_tensor(got, dtype=torch.float64) - want
    return bool(off.abs().max() <= bound * max(1.0, float(want.abs().max())))
