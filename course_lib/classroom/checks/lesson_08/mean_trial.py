"""What runs on the judge's ranks for `token_mean_step`: three steps on unequal, padded batches.

Every rank can make all ranks' batches, so the right loss and gradient, and those of each known
wrong idea, stand beside what the answer gave. Lesson 08.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.classroom.checks import bench

WORDS, WIDE, MICRO = 17, 15, 4  # no two sizes are equal: of ranks, rows, tokens in a row, these
CLOSE, ROUGHLY, HALF = 1e-9, 1e-6, 5e-3  # relative to the largest number; float32; bfloat16
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


def train(function: Callable, group: dist.ProcessGroup, seed: int) -> list[dict]:
    """Three steps of SGD by the answer, then one in float32; each is held against one process.

    Before the third step's gradients are looked at, the answer is used for another model.
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
    right_loss, right = wanted_loss["right"][0], wanted["right"][0]
    return {
        "kind": type(out).__name__,
        "loss": loss,
        "missing": next((name for name, p in net.named_parameters() if p.grad is None), ""),
        "nan": loss != loss or (flat is not None and bool(flat.isnan().any())),
        "gradient": None if flat is None else flat.double(),
        "ideas": {
            "loss": _those(loss, wanted_loss, max(bound, ROUGHLY)),  # float32 will do for a log
            "gradient": _those(flat, wanted, bound),
        },
        "wanted": {"loss": right_loss.double(), "gradient": right.double()},
        "fine": _fine(net, right, bound),
        "roughly": flat is not None and close(flat, right, HALF),
        "overwritten": flat is not None and not torch.equal(_flat(net), flat),
        "moved": not all(map(torch.equal, weights, net.parameters())),
        "left": left,
        "rows": rows,
        "own": sum(len(ids) for ids, _ in data[rank]),
        "changed": not (len(given) == len(data[rank]) and all(same)),
        "bytes": facts["bytes"],
        "numbers": sum(p.numel() for p in net.parameters()),
    }


def _twin(net: Net) -> Net:
    """Another model with the same weights, and nothing else that an answer may have left in it."""
    twin = Net(0).to(next(net.parameters()).dtype)
    twin.load_state_dict({name: p.detach() for name, p in net.named_parameters()})
    return twin


def _those(seen: Tensor | float | None, ideas: dict[str, tuple], bound: float) -> list[str]:
    """The ideas that give what was seen in one of their ways, the right one among them."""
    if seen is None:
        return []
    return [name for name, ways in ideas.items() if any(close(seen, x, bound) for x in ways)]


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


def readings(net: Net, data: list[list[Batch]], rank: int) -> tuple[dict, dict]:
    """The loss and the flat gradient on this rank by the right rule and by each wrong one."""
    losses, gradients = _sums(net, data, 0)
    shifted = [x.sum((0, 1)) for x in _sums(net, data, 1)]
    targets = [[t for _, t in own] for own in data]
    count = _counted(targets, lambda t: t != -100)
    zero = _counted(targets, lambda t: t > 0).sum()
    places = sum(t.numel() for own in targets for t in own)
    later = _counted(targets, lambda t: t[:, 1:] != -100).sum()

    def by(x: Tensor, moved: Tensor) -> dict[str, tuple[Tensor, ...]]:  # (n, micro, …)
        n, k = x.shape[:2]
        some = count.clamp(min=1).view(n, k, *[1] * (x.dim() - 2))
        ranks = count.sum(1).clamp(min=1).view(n, *[1] * (x.dim() - 2))
        total, all_of_it, own = count.sum(), x.sum((0, 1)), x[rank].sum(0)
        last = count[:, -1]
        parts = (ranks[rank], ranks.max(), last.sum(), last[rank].clamp(min=1))
        by_ranks, means = x.sum(1) / ranks, x / some
        mean = all_of_it / total
        return {
            "right": (mean,),
            "own": (own / ranks[rank], own / total, means[rank].mean(0), own),
            "mean of means": (
                *(means.mean((0, 1)), means.sum(1).mean(0), means.sum((0, 1))),
                *(by_ranks.mean(0), by_ranks.sum(0)),
            ),
            "a sum": (all_of_it,),
            "padding counted": (all_of_it / places,),
            "an entry taken for padding": (all_of_it / zero,),
            "divided by the ranks as well": (mean / n,),
            "counted n times": (mean * n,),
            "counted for each micro-batch": (mean * k,),
            "divided by the micro-batches as well": (mean / k,),
            "divided by its own tokens": tuple(all_of_it / part for part in parts),
            "targets shifted": (moved / later, moved / total),
            "the last micro-batch alone": (x[:, -1].sum(0) / total,),
            "the first micro-batch alone": (
                x[:, 0].sum(0) / total,
                x[:, 0].sum(0) / count[:, 0].sum(),
            ),
            "no backward": (all_of_it * 0,),
        }

    return by(losses, shifted[0]), by(gradients, shifted[1])


def _sums(net: Net, data: list[list[Batch]], shift: int) -> tuple[Tensor, Tensor]:
    """(n, micro) the losses, summed over tokens, and (n, micro, parameters) their gradients."""
    losses, gradients = [], []
    for ids, targets in (batch for own in data for batch in own):
        logits = net(ids)[:, : ids.shape[1] - shift]
        loss = F.cross_entropy(
            logits.flatten(0, 1), targets[:, shift:].flatten(), reduction="sum"
        )  # fmt: skip
        found = torch.autograd.grad(loss, list(net.parameters()))
        losses.append(loss.detach())
        gradients.append(torch.cat([g.flatten() for g in found]))
    n = len(data)
    return tuple(torch.stack(x).unflatten(0, (n, -1)) for x in (losses, gradients))


def _counted(targets: list[list[Tensor]], which: Callable[[Tensor], Tensor]) -> Tensor:
    """(n, micro): of how many places something is true."""
    return torch.tensor([[int(which(t).sum()) for t in own] for own in targets]).double()


def close(got: Tensor | float, want: Tensor, bound: float = CLOSE) -> bool:
    off = torch.as_tensor(got, dtype=torch.float64) - want
    return bool(off.abs().max() <= bound * max(1.0, float(want.abs().max())))
