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
LATE, WIDE = 2, 5  # the place in the list of the layer that runs first; one with many inputs
ROOM = 7  # buckets beside the shards: one fills, its gradients, two on their way and arriving


class Case(NamedTuple):
    """Of one trial: the narrowest width, and how many numbers a bucket may hold at least."""

    width: int
    most: int


def warm() -> None:
    """Take the first use of optimizers and of backwards upon itself."""
    net, _ = chain(Case(3, 20), 0)
    net(torch.ones(1, 3, dtype=torch.float64)).sum().backward()


def chain(case: Case, seed: int) -> tuple[nn.Sequential, int]:
    """Layers of uneven widths, one after another, and how many elements a bucket may hold.

    So many that one bucket is exactly full. A layer in the middle and the last one are longer.
    """
    made = torch.Generator().manual_seed(seed)
    widths = [case.width, *(case.width + (5 * i + seed) % 7 for i in range(DEPTH))]
    behind = [k for a, b in itertools.pairwise(widths[-2::-1]) for k in (a, a * b)]
    most = next(total for total in itertools.accumulate(behind) if total >= case.most)
    widths[-1] = widths[WIDE] = most // case.width + 2
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layer = nn.Linear(a, b, bias=len(layers) < 2 * DEPTH - 2, dtype=torch.float64)
        for p in layer.parameters():
            p.data = torch.randn(p.shape, generator=made, dtype=torch.float64) / a**0.5
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers), most


def in_order(net: nn.Sequential) -> list[nn.Parameter]:
    """The parameters as a model lists them that names two layers before the one that runs first:
    its gradients come last of all, when buckets are complete that have to wait for them."""
    layers = list(net[::2])
    layers.insert(LATE, layers.pop(0))
    return [p for layer in layers for p in (layer.weight, layer.bias) if p is not None]


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


def train(function: Callable, group: Group, case: Case, seed: int) -> list[dict]:
    """Two steps: what the answer gave in each; then plain gradient descent by all ranks' sums."""
    net, most = chain(case, seed)
    case, told, kept = case._replace(most=most), [], []
    for step in range(STEPS):
        report, sums, out = _step(function, net, case, seed, step, group)
        told.append(report)
        tensors = [x for x in out if bench.plain(x)] if report["count"] is not None else []
        report["spoiled"] = any(
            len(before) != len(copies) or not all(map(torch.equal, before, copies))
            for before, copies in kept
        )
        if report["hooked"] or len(tensors) != report["count"]:
            break
        kept.append((out, [one.detach().clone() for one in tensors]))
        with torch.no_grad():
            for p, grad in zip(in_order(net), sums, strict=True):
                p -= 0.05 * grad
    return told


def _step(
    function: Callable, net: nn.Module, case: Case, seed: int, step: int, group: Group
) -> tuple[dict, list[Tensor], object]:
    n, rank, parameters = group.size(), group.rank(), in_order(net)
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
    given = list(parameters)
    with watch:
        (out, records), facts = bench.watched(
            lambda: _noted(lambda: function(loss, given, case.most, group))
        )
    for hook in hooks:
        hook.remove()
    entries = list(out) if isinstance(out, (list, tuple)) else []
    tensors = [one for one in entries if isinstance(one, Tensor)]
    storages = (t.untyped_storage() for t in tensors if bench.plain(t))
    behind = {s.data_ptr(): s.nbytes() for s in storages}
    report = {
        "kind": bench.kind(out),
        "changed": list(map(id, given)) != list(map(id, parameters)),
        "count": len(entries) if isinstance(out, (list, tuple)) else None,
        "only tensors": len(tensors) == len(entries) and all(map(bench.plain, tensors)),
        "buckets": len(buckets),
        "of parameters": len(parameters),
        "shapes": [list(t.shape) for t in tensors][:6],
        "ideas": readings(tensors, parameters, sums, each[rank], case.most, n, rank),
        "left": [name for name, p in net.named_parameters() if p.grad is not None],
        "records": records,
        "ops": facts["ops"],
        "bytes": facts["bytes"],
        "padded": [sum(p.numel() for p in b) + -sum(p.numel() for p in b) % n for b in buckets],
        "overlap": _overlap(tensors),
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
    return report, sums, out


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

    def padded(flat: Tensor, front: bool = False) -> Tensor:
        return F.pad(flat, (-len(flat) % n, 0) if front else (0, -len(flat) % n))

    def cut(
        buckets: list[list[Tensor]],
        of: dict,
        piece: int | None = rank,
        each: bool = False,
        front: bool = False,
    ) -> list[Tensor]:
        found = []
        for bucket in buckets:
            parts = [of[p].flatten() for p in bucket]
            flat = padded(torch.cat([padded(p) for p in parts] if each else parts), front)
            found.append(flat if piece is None else flat.chunk(n)[piece])
        return found

    right = cut(backwards, total)
    ideas = {
        "right": right,
        "rounded": right,
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
        "exactly full": cut(plan(parameters[::-1], most - 1), total),
        "padded each": cut(backwards, total, each=True),
        "padded in front": cut(backwards, total, front=True),
    }
    if rank == 0:
        del ideas["the first piece"]
    found = [name for name, want in ideas.items() if _same(got, want, name == "rounded")]
    if all(any(_same([one], [want]) for want in right) for one in got):
        found += ["in another order"] if len(got) == len(right) else ["not all"]
    return found


def _same(got: list[Tensor], want: list[Tensor], loose: bool = False) -> bool:
    return len(got) == len(want) and all(
        bench.plain(a) and a.shape == b.shape and (loose or a.dtype == b.dtype)
        and torch.allclose(a.detach().to(b.dtype), b, rtol=1e-5 if loose else 1e-9,
                           atol=1e-6 * float(b.abs().max()) if loose else 1e-12)
        for a, b in zip(got, want, strict=True)
    )  # fmt: skip


def _overlap(tensors: Sequence[Tensor]) -> bool:
    """Whether two of them lie in the same memory. (Pieces of one buffer side by side do not.)"""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if bench.plain(t))
    return any(stop > start for (_, stop), (start, _) in itertools.pairwise(spans))
