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
from course_lib.classroom.checks.lesson_03 import kept
from course_lib.layout import span

STEPS, RATE = 3, 0.05
FACTOR = 5.0  # of the branch beside f: its gradient is told from a sum by it
_NAMES = ("x", "w", "p", "v", "u", "c", "q", "A", "B", "t")


def numbers(seed: int, name: str, rank: int, *shape: int) -> Tensor:
    """A tensor of one rank by its name; with rank 0 for all, one that all ranks hold."""
    made = torch.Generator().manual_seed(seed * 4099 + rank * 64 + _NAMES.index(name))
    return torch.randn(shape, generator=made, dtype=torch.float64)


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
        **bench.described(out),
        "there": there,
        "changed": not torch.equal(x.detach(), before),
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
    c, w = numbers(seed, "c", r, *shape), numbers(seed, "w", r, *shape)

    def run() -> tuple[Tensor, ...]:
        beside = FACTOR * u  # made before f, so that autograd comes to it after f
        (c * (beside + f(x))).sum().backward()
        p = q.exp()  # keeps its result for the backward
        first, second = g(p), g(2 * p)
        ((first * v).sum() + (second * v).sum() + (p * c).sum()).backward()
        return p.detach().clone(), first.detach().clone(), second.detach().clone()

    (p, first, second), _ = bench.watched(run)
    found = {"u": _grad(u), "x": _grad(x), "q": _grad(q), "p": p, "sums": [first, second]}
    x.grad = None
    bench.watched(lambda: (f(x) * c + f(x) * w).sum().backward())
    return {**found, "twice": _grad(x)}


def at_once(function: Callable, group: dist.ProcessGroup, seed: int, shape: list[int]) -> dict:
    """Two pairs alive at once: a second one, for a group of this rank alone, made before the first
    is used, and used between the first's forward and its backward."""
    own = alone_in_a_group()
    (pair, _), (other, _) = pair_of(function, group), pair_of(function, own)
    r = group.rank()
    found = []

    def use(f: Callable, g: Callable) -> tuple[Tensor, Tensor]:
        x = leaf(numbers(seed, "x", 0, *shape))
        return x, g(f(x) * numbers(seed, "w", r, *shape))

    def run() -> None:
        uses = [use(*pair), use(*other)]
        for x, y in uses:
            (y * numbers(seed, "v", 0, *shape)).sum().backward()
            found.append((y.detach().clone(), _grad(x)))

    bench.watched(run)
    bench.end(own)
    return {"mine": found[0], "other": found[1]}


def alone_in_a_group() -> dist.ProcessGroup:
    """A group of this rank and no other; all ranks call it."""
    return [dist.new_group([r]) for r in range(dist.get_world_size())][dist.get_rank()]


def shapes(
    function: Callable, group: dist.ProcessGroup, seed: int, kinds: list[tuple[list[int], str]]
) -> list[dict]:
    """Both in a row, on tensors of several shapes and dtypes."""
    (f, g), _ = pair_of(function, group)
    found = []
    for shape, dtype in kinds:
        x, w, v = (
            numbers(seed, name, rank, *shape).to(getattr(torch, dtype))
            for name, rank in (("x", 0), ("w", group.rank()), ("v", 0))
        )
        x = leaf(x)
        y, _ = bench.watched(lambda x=x, w=w: g(f(x) * w))
        report = {"dtype": _dtype(y), "y": y.detach().double(), "x": None}
        if y.requires_grad and y.shape == v.shape:
            bench.watched(lambda y=y, v=v: (y * v).sum().backward())
            report["x"] = None if x.grad is None else x.grad.double()
        found.append(report)
    return found


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


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
    data, before = p.detach().clone(), p.detach().clone()
    sums, _ = bench.watched(lambda: f(x.detach()) + g(data))  # no tensor wants a gradient
    bench.watched(lambda: (f(x.t()) * w).sum().backward())
    found = {"changed": not torch.equal(data, before), "data": sums.clone()}
    found |= {"ones": ones, "y": y, "x": _grad(x)}
    # Stored by columns on the first rank, by rows on the others.
    stored, x.grad = p.detach().t().contiguous().t() if r == 0 else p.detach(), None
    apart, _ = bench.watched(lambda: g(stored).clone())
    out, _ = bench.watched(lambda: f(x))
    product = out.t() * w if r == 0 else out * w.t().contiguous()
    bench.watched(lambda: product.sum().backward())
    return {**found, "apart": [apart, _grad(x)]}


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


def both_gathered(function: Callable, group: dist.ProcessGroup, *more: object) -> list[dict]:
    return [gathered(function, group, *more, after) for after in ("replicated", "sharded")]


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
    before, lengths = x.detach().clone(), list(sizes)
    out, there = bench.watched(lambda: function(x, group, dim, lengths, after))
    found = {
        **bench.described(out),
        "there": there,
        "kept": 0,
        "changed": not torch.equal(x.detach(), before),
        "lengths": lengths == sizes,
        "out": None,
    }
    if found["shape"] != whole or out.dtype != x.dtype:
        return found
    found["out"] = out.detach().clone()
    if not out.requires_grad:
        return {**found, "grad": None}
    weighted = (out**2 * weights).sum()
    _, back = bench.watched(weighted.backward)
    found["lengths"] = found["lengths"] and lengths == sizes
    found |= {"back": back, "grad": _grad(x)}
    del out, weighted
    if 0 in sizes:  # the last case: of another x, that no other step needs
        more = (group, dim, list(sizes), after)
        (_, found["kept"]), _ = bench.watched(
            lambda: kept.call(function, (one * 1 for one in [x]), *more)
        )
    return found


def gathers_at_once(
    function: Callable, group: dist.ProcessGroup, seed: int, uses: list[tuple]
) -> list[dict]:
    """Several gathers whose backwards come when all forwards have been: each with its own dtype,
    dim, sizes and consumer; what has one size is in a group of this rank alone."""
    own, made, found = alone_in_a_group(), [], []
    for i, (dtype, whole, dim, sizes, after) in enumerate(uses):
        where = own if len(sizes) == 1 else group
        x = numbers(seed + i, "x", 0, *whole).to(getattr(torch, dtype))
        x = leaf(x.split(sizes, dim)[where.rank()])
        who = 0 if after == "replicated" else where.rank()
        w = numbers(seed + i, "w", who, *whole).to(x.dtype)
        u = leaf(torch.zeros_like(w))
        beside = FACTOR * u  # made before the gather, so that autograd comes to it after the gather
        out, _ = bench.watched(
            lambda x=x, at=where, how=(dim, list(sizes), after): function(x, at, *how)
        )
        made.append((x, u, out, (beside + out) * w))
    for x, u, out, product in made:
        report = {"dtype": _dtype(out), "out": out.detach().double(), "grad": None}
        bench.watched(lambda product=product: product.sum().backward())
        report["beside"] = u.grad.double()
        found.append({**report, "grad": None if x.grad is None else x.grad.double()})
    bench.end(own)
    return found
