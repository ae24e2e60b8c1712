"""What runs on the judge's ranks for `reduce_early`: two backwards of a deep, narrow net.

Every rank and the judge can make all ranks' rows; as gradients come, the watch counts what the
backward has made. Lesson 10.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.looking import ITEM
from course_lib.collectives.call import Group
from course_lib.ledger import ledger
from course_lib.memory.settled import wait_until_settled
from course_lib.memory.watch import Watch

DEPTH, ROWS, STEPS = 16, 2, 2
LATE, WIDE = 2, 5  # the place in the list of the layer that runs first; one with many inputs
ROOM = 7  # buckets beside the shards: one fills, its gradients, two on their way and arriving


class Step(NamedTuple):
    """One backward: each rank's loss and gradients, of the parameters as the model lists them."""

    most: int
    parameters: list[nn.Parameter]
    loss: Callable[[int], Tensor]  # of a rank
    each: list[dict[Tensor, Tensor]]

    def sums(self) -> dict[Tensor, Tensor]:
        return {p: sum(own[p] for own in self.each) for p in self.parameters}

    def padded(self) -> list[int]:
        """How many elements a rank sends of each bucket."""
        lengths = [sum(p.numel() for p in b) for b in plan(self.parameters[::-1], self.most)]
        return [length + -length % len(self.each) for length in lengths]

    def shard(self) -> int:
        """Bytes of a rank's shards."""
        return sum(self.padded()) // len(self.each) * ITEM

    def allowed(self) -> int:
        """Bytes that may be alive at once."""
        return self.shard() + ROOM * self.most * ITEM


def chain(width: int, least: int, seed: int) -> tuple[nn.Sequential, int]:
    """Layers of uneven widths, one after another, and how many elements a bucket may hold.

    So many that one bucket is exactly full. A layer in the middle and the last one are longer.
    """
    made = torch.Generator().manual_seed(seed)
    widths = [width, *(width + (5 * i + seed) % 7 for i in range(DEPTH))]
    behind = [k for a, b in itertools.pairwise(widths[-2::-1]) for k in (a, a * b)]
    most = next(total for total in itertools.accumulate(behind) if total >= least)
    widths[-1] = widths[WIDE] = most // width + 2
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layer = nn.Linear(a, b, bias=len(layers) < 2 * DEPTH - 2, dtype=torch.float64)
        for p in layer.parameters():
            p.data = torch.randn(p.shape, generator=made, dtype=torch.float64) / a**0.5
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers), most


def steps(width: int, least: int, seed: int, n: int) -> Iterator[Step]:
    """Two backwards; after each, plain gradient descent by all ranks' sums.

    The list of parameters names two layers before the one that runs first: its gradients come last
    of all, when buckets are complete that have to wait for them.
    """
    net, most = chain(width, least, seed)
    layers = list(net[::2])
    layers.insert(LATE, layers.pop(0))
    parameters = [p for layer in layers for p in (layer.weight, layer.bias) if p is not None]
    for step in range(STEPS):

        def loss(rank: int, step: int = step) -> Tensor:
            made = torch.Generator().manual_seed(seed * 1009 + 31 * step + rank)
            x = torch.randn(ROWS, width, generator=made, dtype=torch.float64)
            return net(x).square().sum()

        grads = [torch.autograd.grad(loss(rank), parameters) for rank in range(n)]
        each = [dict(zip(parameters, own, strict=True)) for own in grads]
        yield (now := Step(most, parameters, loss, each))
        with torch.no_grad():
            for p, grad in now.sums().items():
                p -= 0.05 * grad


def plan(parameters: Sequence[Tensor], most: int) -> list[list[Tensor]]:
    """Buckets by the rule of the exercise, of the parameters in the order given."""
    buckets: list[list[Tensor]] = [[]]
    for p in parameters:
        if buckets[-1] and sum(q.numel() for q in buckets[-1]) + p.numel() > most:
            buckets.append([])
        buckets[-1].append(p)
    return buckets


def train(function: Callable, group: Group, width: int, least: int, seed: int) -> list[dict]:
    """What the answer gave in each backward, what it sent, and what was alive on the way."""
    reports, kept = [], []
    for step in steps(width, least, seed, group.size()):
        report, out = _tried(function, group, step)
        reports.append(report)
        report["spoiled"] = any(
            len(a) != len(b) or not all(map(torch.equal, a, b)) for a, b in kept
        )
        if report["hooked"] or report["pieces"] is None:
            break
        kept.append((out, report["pieces"]))
    return reports


def _tried(function: Callable, group: Group, step: Step) -> tuple[dict, object]:
    loss, allowed, watch = step.loss(group.rank()), step.allowed(), Watch()
    alive: list[int] = []
    hooks = [
        p.register_post_accumulate_grad_hook(lambda p: alive.append(_made(watch, allowed)))
        for p in step.parameters
    ]
    given = list(step.parameters)
    with watch, ledger() as book:
        out, facts = bench.watched(lambda: function(loss, given, step.most, group))
    for hook in hooks:
        hook.remove()
    tensors = list(out) if isinstance(out, (list, tuple)) and all(map(bench.plain, out)) else None
    storages = [x.untyped_storage() for x in tensors or []]
    sent = [(r.phase, r.elements) for r in book.records if r.op == "reduce_scatter"]
    report = {
        "kind": bench.kind(out),
        "pieces": None if tensors is None else [x.detach().clone() for x in tensors],
        "count": len(tensors or []),
        "came": len(alive),
        "changed": list(map(id, given)) != list(map(id, step.parameters)),
        "left": sum(p.grad is not None for p in step.parameters),
        "sent": [elements for _, elements in sent],
        "late": sum(phase != "backward" for phase, _ in sent),
        "verbs": list(facts["ops"]),
        "messages": sum(facts["ops"].values()),
        "bytes": facts["bytes"],
        "overlap": _overlap(tensors or []),
        "held": sum({s.data_ptr(): s.nbytes() for s in storages}.values()),
        "alive": max(alive, default=0),
        "hooked": sum(map(_hooked, step.parameters)),
    }
    for p in step.parameters:
        p.grad = None
    return report, out


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


def _overlap(tensors: Sequence[Tensor]) -> bool:
    """Whether two of them lie in the same memory. (Pieces of one buffer side by side do not.)"""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors)
    return any(stop > start for (_, stop), (start, _) in itertools.pairwise(spans))
