"""What runs on the judge's ranks for `reduce_early`: two backwards of a deep, narrow net.

Every rank can make all ranks' rows, so the right shards, and those of known wrong ideas, stand
beside what came back; as gradients come, the watch counts what the backward has made. Lesson 10.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.collectives.call import Group
from course_lib.ledger import ledger
from course_lib.memory.settled import wait_until_settled
from course_lib.memory.watch import Watch

DEPTH, ROWS, STEPS, ITEM = 16, 2, 2, 8
ROOM = 7  # buckets beside the shards: one fills, its gradients, two on their way and arriving


class Case(NamedTuple):
    """Of one trial: the narrowest width, and how many numbers a bucket may hold."""

    width: int
    most: int


def warm() -> None:
    """Take the first use of optimizers and of backwards upon itself."""
    net = chain(Case(3, 20), 0)
    net(torch.ones(1, 3, dtype=torch.float64)).sum().backward()


def chain(case: Case, seed: int) -> nn.Sequential:
    """Layers of uneven widths, one after another: gradients come in the reverse of their order."""
    made = torch.Generator().manual_seed(seed)
    widths = [case.width, *(case.width + (5 * i + seed) % 7 for i in range(DEPTH))]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layer = nn.Linear(a, b, dtype=torch.float64)
        for p in layer.parameters():
            p.data = torch.randn(p.shape, generator=made, dtype=torch.float64) / a**0.5
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers)


def rows(case: Case, seed: int, step: int, rank: int) -> Tensor:
    made = torch.Generator().manual_seed(seed * 1009 + 31 * step + rank)
    return torch.randn(ROWS, case.width, generator=made, dtype=torch.float64)


def plan(parameters: Sequence[Tensor], most: int) -> list[list[Tensor]]:
    """Buckets by the rule of the exercise, of the parameters in the order given."""
    buckets: list[list[Tensor]] = [[]]
    for p in parameters:
        if buckets[-1] and sum(q.numel() for q in buckets[-1]) + p.numel() > most:
            buckets.append([])
        buckets[-1].append(p)
    return buckets


def train(function: Callable, case: Case, seed: int, group: Group) -> list[dict]:
    """Two steps: what the answer gave in each; then plain gradient descent by all ranks' sums."""
    net, told = chain(case, seed), []
    for step in range(STEPS):
        report, sums = _step(function, net, case, seed, step, group)
        told.append(report)
        if report["hooked"]:
            break
        with torch.no_grad():
            for p, grad in zip(net.parameters(), sums, strict=True):
                p -= 0.05 * grad
    return told


def _step(
    function: Callable, net: nn.Module, case: Case, seed: int, step: int, group: Group
) -> tuple[dict, list[Tensor]]:
    n, rank, parameters = group.size(), group.rank(), list(net.parameters())
    each = []
    for r in range(n):
        loss = net(rows(case, seed, step, r)).square().sum()
        each.append(torch.autograd.grad(loss, parameters))
    sums = [torch.stack(grads).sum(0) for grads in zip(*each, strict=True)]
    buckets = plan(parameters[::-1], case.most)
    loss = net(rows(case, seed, step, rank)).square().sum()
    shard = sum(-(-sum(p.numel() for p in b) // n) for b in buckets) * ITEM
    allowed = shard + ROOM * case.most * ITEM
    counts: list[int] = []
    watch = Watch()
    hooks = [
        p.register_post_accumulate_grad_hook(lambda p: counts.append(_made(watch, allowed)))
        for p in parameters
    ]
    with watch:
        (out, records), facts = bench.watched(
            lambda: _noted(lambda: function(loss, list(parameters), case.most, group))
        )
    for hook in hooks:
        hook.remove()
    entries = list(out) if isinstance(out, (list, tuple)) else []
    tensors = [one for one in entries if isinstance(one, Tensor)]
    behind = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in tensors)}
    report = {
        "kind": type(out).__name__,
        "count": len(entries) if isinstance(out, (list, tuple)) else None,
        "only tensors": len(tensors) == len(entries),
        "buckets": len(buckets),
        "of parameters": len(parameters),
        "shapes": [list(t.shape) for t in tensors][:6],
        "ideas": readings(tensors, parameters, sums, each[rank], case.most, n, rank),
        "left": [name for name, p in net.named_parameters() if p.grad is not None],
        "records": records,
        "ops": facts["ops"],
        "bytes": facts["bytes"],
        "padded": [sum(p.numel() for p in b) + -sum(p.numel() for p in b) % n for b in buckets],
        "held": sum(behind.values()),
        "shard": shard,
        "most held": max(counts, default=0),
        "bucket": case.most * ITEM,
        "allowed": allowed,
        "came": len(counts),
        "hooked": sum(map(_hooked, parameters)),
        "whole": sum(p.numel() for p in parameters) * ITEM,
    }
    for p in parameters:
        p.grad = None
    return report, sums


def _noted(action: Callable[[], object]) -> tuple[object, list[tuple]]:
    with ledger() as book:
        out = action()
    return out, [(r.op, r.phase, r.elements) for r in book.records]


def _made(watch: Watch, enough: int) -> int:
    """Bytes that the backward has made so far and that are alive. A backend's thread may hold the
    copy that it made for a message a moment longer, so more than `enough` is looked at again."""
    found = sum(one.nbytes() for one in watch.made_and_alive())
    if found > enough:
        wait_until_settled()
        found = sum(one.nbytes() for one in watch.made_and_alive())
    return found


def _hooked(p: Tensor) -> bool:
    """Whether something is still called when a gradient of this parameter comes."""
    return any(getattr(p, f"_{kind}_hooks", None) for kind in ("post_accumulate_grad", "backward"))


def readings(
    got: list[Tensor],
    parameters: list[Tensor],
    sums: list[Tensor],
    own: Sequence[Tensor],
    most: int,
    n: int,
    rank: int,
) -> list[str]:
    """The ideas that explain what this rank gave back."""
    total = dict(zip(parameters, sums, strict=True))
    mine = dict(zip(parameters, own, strict=True))
    backwards, forwards = plan(parameters[::-1], most), plan(parameters, most)

    def cut(buckets: list[list[Tensor]], of: dict, piece: int | None = rank) -> list[Tensor]:
        found = []
        for bucket in buckets:
            flat = torch.cat([of[p].flatten() for p in bucket])
            flat = F.pad(flat, (0, -len(flat) % n))
            found.append(flat if piece is None else flat.chunk(n)[piece])
        return found

    right = cut(backwards, total)
    ideas = {
        "right": right,
        "a mean": [one / n for one in right],
        "its own": cut(backwards, mine),
        "its own, n times": [one * n for one in cut(backwards, mine)],
        "filled from the first": cut(forwards, total),
        "filled from the first, turned": cut(forwards, total)[::-1],
        "turned inside": cut([bucket[::-1] for bucket in backwards], total),
        "in the other order": right[::-1],
        "whole": cut(backwards, total, None),
        "the first piece": cut(backwards, total, 0),
        "a bucket each": cut([[p] for p in parameters[::-1]], total),
        "one bucket": cut([parameters[::-1]], total),
    }
    if rank == 0:
        del ideas["the first piece"]
    return [name for name, want in ideas.items() if _same(got, want)]


def _same(got: list[Tensor], want: list[Tensor]) -> bool:
    return len(got) == len(want) and all(
        a.shape == b.shape and a.dtype == b.dtype
        and torch.allclose(a.detach(), b, rtol=1e-9, atol=1e-12)
        for a, b in zip(got, want, strict=True)
    )  # fmt: skip
