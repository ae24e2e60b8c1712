"""What lesson 03's checks run on the judge's ranks: small graphs through a learner's functions.

Every rank can make every rank's numbers from the seed, and so can the judge, which works out the
dense result from them. Nothing here says what is right.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from course_lib.classroom.checks import bench
from course_lib.layout import span

STEPS, RATE = 3, 0.05
FACTOR = 5.0  # of the branch beside f: its gradient is told from a sum by it
_NAMES = ("x", "w", "p", "v", "u", "c", "q", "A", "B", "t")


def numbers(seed: int, name: str, rank: int, *shape: int) -> Tensor:
    """A tensor of one rank by its name; with rank 0 for all, one that all ranks hold."""
    made = torch.Generator().manual_seed(seed * 4099 + rank * 64 + _NAMES.index(name))
    return torch.randn(*shape, generator=made, dtype=torch.float64)


def leaf(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


def pair_of(function: Callable, group: dist.ProcessGroup) -> tuple[object, dict]:
    """What `function(group)` returned, and whether it can be used as f and g."""
    made, _ = bench.watched(lambda: function(group))
    two = isinstance(made, (tuple, list)) and len(made) == 2
    return made, {"kind": type(made).__name__, "pair": two and all(map(callable, made))}


def alone(function: Callable, group: dist.ProcessGroup, seed: int, shape: list[int]) -> dict:
    """Each of the two once, with numbers of every rank behind it (f) or before it (g)."""
    made, told = pair_of(function, group)
    if not told["pair"]:
        return told
    r = group.rank()
    x, p = leaf(numbers(seed, "x", 0, *shape)), leaf(numbers(seed, "p", r, *shape))
    f = _there_and_back(made[0], x, numbers(seed, "w", r, *shape))
    g = _there_and_back(made[1], p, numbers(seed, "v", 0, *shape))
    return {**told, "f": f, "g": g}


def _there_and_back(function: Callable, x: Tensor, weights: Tensor) -> dict:
    before = x.detach().clone()
    out, there = bench.watched(lambda: function(x))
    found = {
        "kind": type(out).__name__,
        "there": there,
        "changed": not torch.equal(x.detach(), before),
        "shape": list(out.shape) if isinstance(out, Tensor) else None,
        "dtype": str(out.dtype).removeprefix("torch.") if isinstance(out, Tensor) else None,
        "out": None,
    }
    if found["shape"] != list(x.shape) or out.dtype != x.dtype:
        return found
    found["out"] = out.detach().clone()
    if not out.requires_grad:
        return {**found, "grad": None}
    _, back = bench.watched(lambda: (out * weights).sum().backward())
    return {**found, "back": back, "grad": _grad(x)}


def _grad(x: Tensor) -> Tensor | None:
    return None if x.grad is None else x.grad.detach().clone()


def shared(function: Callable, group: dist.ProcessGroup, seed: int, shape: list[int]) -> dict:
    """Tensors that another step needs as well: a branch beside f, an operation before g."""
    (f, g), _ = pair_of(function, group)
    r = group.rank()
    u, x = leaf(numbers(seed, "u", r, *shape)), leaf(numbers(seed, "x", 0, *shape))
    q, v = leaf(numbers(seed, "q", r, *shape)), numbers(seed, "v", 0, *shape)
    c = numbers(seed, "c", r, *shape)

    def run() -> Tensor:
        beside = FACTOR * u  # made before f, so that autograd comes to it after f
        (c * (beside + f(x))).sum().backward()
        p = q.exp()  # keeps its result for the backward
        ((g(p) * v).sum() + (g(p) * v).sum() + (p * c).sum()).backward()
        return p.detach()

    p, _ = bench.watched(run)
    return {"u": _grad(u), "x": _grad(x), "q": _grad(q), "p": p.clone()}


def layouts(function: Callable, group: dist.ProcessGroup, seed: int, shape: list[int]) -> dict:
    """Gradients and inputs that do not lie in one block: transposed ones, and one number for all.

    Asked after `shared`: a sum in place would write where there is no room.
    """
    (f, g), _ = pair_of(function, group)
    r = group.rank()
    x, p = leaf(numbers(seed, "x", 0, *shape)), leaf(numbers(seed, "p", r, *shape))
    w = numbers(seed, "w", r, *shape[::-1])
    bench.watched(lambda: f(x).sum().backward())  # its gradient is one 1, repeated
    ones, x.grad = _grad(x), None
    y, _ = bench.watched(lambda: g(p.t()).detach().clone())
    data, _ = bench.watched(lambda: f(x.detach()) + g(p.detach()))  # no tensor wants a gradient
    bench.watched(lambda: (f(x.t()) * w).sum().backward())
    return {"ones": ones, "y": y, "x": _grad(x), "data": data.clone()}


def net(function: Callable, group: dist.ProcessGroup, seed: int, dims: list[int]) -> dict:
    """Steps of SGD on two layers, the first cut along its outputs, the second to match.

    Once as they are, once with all activations computed again in the backward.
    """
    (f, g), _ = pair_of(function, group)
    return {again: _train(f, g, group, seed, dims, again) for again in (False, True)}


def _train(
    f: Callable, g: Callable, group: dist.ProcessGroup, seed: int, dims: list[int], again: bool
) -> dict:
    rows, h, hidden, out = dims
    x, t = leaf(numbers(seed, "x", 0, rows, h)), numbers(seed, "t", 0, rows, out)
    mine = slice(*span(hidden, group.size(), group.rank()))
    a = leaf(numbers(seed, "A", 0, h, hidden)[:, mine])  # (h, hidden/n)
    b = leaf(numbers(seed, "B", 0, hidden, out)[mine])  # (hidden/n, out)

    def layers(x: Tensor) -> Tensor:
        return g((f(x) @ a).tanh() @ b)

    def step() -> float:
        y = checkpoint(layers, x, use_reentrant=False) if again else layers(x)
        loss = ((y - t) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for weight in (a, b):
                weight -= RATE * weight.grad
                weight.grad = None
        return loss.item()

    losses = [bench.watched(step)[0] for _ in range(STEPS)]
    return {"losses": losses, "A": a.detach(), "B": b.detach(), "x": _grad(x)}


def gathered(
    function: Callable, group: dist.ProcessGroup, seed: int, shape: list[int], dim: int,
    sizes: list[int], after: str,
) -> dict:  # fmt: skip
    """A gather, and behind it the same work on every rank, or work of each rank's own."""
    r, whole = group.rank(), list(shape)
    whole[dim] = sum(sizes)
    x = leaf(numbers(seed, "x", 0, *whole).split(sizes, dim)[r])
    weights = numbers(seed, "v", 0, *whole) if after == "replicated" else (
        numbers(seed, "w", r, *whole)
    )  # fmt: skip
    before, kept = x.detach().clone(), []

    def keep(saved: Tensor) -> Tensor:
        kept.append(saved.numel() * saved.element_size())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        out, there = bench.watched(lambda: function(x, group, dim, list(sizes), after))
    found = {
        "kind": type(out).__name__,
        "there": there,
        "kept": sum(kept),
        "changed": not torch.equal(x.detach(), before),
        "shape": list(out.shape) if isinstance(out, Tensor) else None,
        "out": None,
    }
    if found["shape"] != whole or out.dtype != x.dtype:
        return found
    found["out"] = out.detach().clone()
    if not out.requires_grad:
        return {**found, "grad": None}
    _, back = bench.watched(lambda: (out**2 * weights).sum().backward())
    return {**found, "back": back, "grad": _grad(x)}
