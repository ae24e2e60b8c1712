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

WORDS, WIDE, MICRO = 7, 4, 4  # as many micro-batches as no trial has ranks
CLOSE = 1e-9  # float64, relative to the largest number
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
            b, s = 1 + (rank + micro) % 2, 4 + micro + 2 * rank
            ids, targets = torch.randint(WORDS, (2, b, s), generator=made).unbind()
            targets = targets.clone()
            lengths = torch.randint(1, s, (b,), generator=made)
            targets[torch.arange(s) >= lengths[:, None]] = -100
            if (rank == 0 and micro == 1) or (rank == n - 1 and step == 1):
                targets[:] = -100
            own.append((ids, targets))
        found.append(own)
    return found


def train(function: Callable, seed: int, group: dist.ProcessGroup) -> dict:
    """Three steps of SGD by the answer, and the same by one process."""
    n, rank = group.size(), group.rank()
    mine = Net(seed)
    whole = copy.deepcopy(mine)
    steps = []
    for step in range(3):
        data = batches(seed, n, step)
        steps.append(_step(function, mine, data, rank, group))
        for one in whole.parameters():
            one.grad = None
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
    return {"steps": steps, "gap": gap}


def _loss(net: Net, data: list[Batch]) -> Tensor:
    """The mean over all tokens of these batches, which one process would compute."""
    total = sum(
        F.cross_entropy(net(i).flatten(0, 1), t.flatten(), reduction="sum") for i, t in data
    )
    return total / sum((t != -100).sum() for _, t in data)


def _step(
    function: Callable, net: Net, data: list[list[Batch]], rank: int, group: dist.ProcessGroup
) -> dict:
    wanted_loss, wanted = readings(copy.deepcopy(net), data, rank)
    for p in net.parameters():
        p.grad = None
    net.rows = 0
    given = [(ids.clone(), targets.clone()) for ids, targets in data[rank]]
    out, facts = bench.watched(lambda: function(net, given, group))
    parts = [p.grad for p in net.parameters()]
    missing = [name for name, p in net.named_parameters() if p.grad is None]
    flat = None if missing else torch.cat([g.flatten() for g in parts])
    one = isinstance(out, Tensor) and out.numel() == 1
    loss = float(out.detach()) if one else out if isinstance(out, float) else None
    return {
        "kind": type(out).__name__,
        "loss": loss,
        "losses": [] if loss is None else [k for k, v in wanted_loss.items() if close(loss, v)],
        "missing": missing,
        "nan": flat is not None and bool(flat.isnan().any()),
        "gradients": [] if flat is None else [k for k, v in wanted.items() if close(flat, v)],
        "rows": net.rows,
        "own rows": sum(len(ids) for ids, _ in data[rank]),
        "changed": not all(map(torch.equal, sum(given, ()), sum(data[rank], ()))),
        "bytes": facts["bytes"],
        "numbers": sum(p.numel() for p in net.parameters()),
        "tokens": sum(int((t != -100).sum()) for _, t in data[rank]),
    }


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
        }

    return by(torch.stack(losses)), by(torch.stack(gradients))


def close(got: Tensor | float, want: Tensor) -> bool:
    off = torch.as_tensor(got, dtype=torch.float64) - want
    return bool(off.abs().max() <= CLOSE * max(1.0, float(want.abs().max())))
