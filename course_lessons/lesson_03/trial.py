"""Trials of lesson 03 on the judge's ranks: small graphs through a learner's f and g.

Every rank and the judge can draw all ranks' numbers from the seed, and the judge computes the dense
result from them. This file does not judge answers.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from course_classroom.judge import bench
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.layers import alone_in_a_group
from course_lib.layout import span

STEPS, RATE = 3, 0.05
FACTOR = 5.0  # of the branch of f's input; it distinguishes its gradient from a sum
_EACH, _ALL = "wpucq", "xvABt"  # names of tensors that differ by rank, and of replicated ones
Shape = list[int]


def numbers(seed: int, name: str, rank: int, *shape: int) -> Tensor:
    """Return a named tensor, which is replicated or belongs to one rank."""
    number = (_EACH + _ALL).index(name) + (rank * 64 if name in _EACH else 0)
    made = torch.Generator().manual_seed(seed * 4099 + number)
    return torch.randn(shape, generator=made, dtype=torch.float64)


def leaf(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


def grad(x: Tensor) -> Tensor | None:
    return None if x.grad is None else x.grad.detach().clone()


def nearly(seen: Tensor | None, wanted: Tensor) -> bool:
    """Return True if two tensors are equal up to float32 rounding."""
    if seen is None or seen.shape != wanted.shape:
        return False
    return torch.allclose(seen, wanted, rtol=1e-4, atol=1e-4)


def refuse_ready_made(answer: Answer) -> None:
    """Raise a Finding if the answer imports such pairs from the library."""
    nodes = [node for cell in answer.cells for node in ast.walk(ast.parse(cell))]
    imports = [ast.unparse(one) for one in nodes if isinstance(one, ast.Import | ast.ImportFrom)]
    if any("tensor_parallel" in text for text in imports):
        raise Finding(
            "ready-made pair",
            "It imports from course_lib.tensor_parallel, which contains these pairs. Write the "
            "backward yourself, with torch.autograd.Function.",
        )


def pair_of(function: Callable, group: dist.ProcessGroup) -> object:
    return bench.watched(lambda: function(group))[0]


def alone(
    function: Callable, group: dist.ProcessGroup, seed: int, shape: Shape, dtype: str = "float64"
) -> dict:
    """Run f and g once each, with different numbers on every rank after f or before g."""
    made = pair_of(function, group)
    if not (isinstance(made, (tuple, list)) and len(made) == 2 and all(map(callable, made))):
        return {"kind": type(made).__name__}
    given = [numbers(seed, name, group.rank(), *shape) for name in "xwpv"]
    x, w, p, v = (one.to(getattr(torch, dtype)) for one in given)
    f, g = there_and_back(made[0], leaf(x), w), there_and_back(made[1], leaf(p), v)
    return {"kind": "", "f": f, "g": g}


def there_and_back(
    step: Callable[[Tensor], object], x: Tensor, weights: Tensor, loss: Callable = torch.mul
) -> dict:
    """Run a step in the middle of a graph; report its output and the gradient of the leaf."""
    given = x * 1  # not a leaf, because a previous step made it
    before = given.detach().clone()
    out, there = bench.watched(lambda: step(given))
    found = {**bench.described(out), "there": there, "out": None, "grad": None}
    if found["shape"] == list(weights.shape) and out.dtype == weights.dtype:
        found["out"] = out.detach().clone()
        if out.requires_grad:
            _, found["back"] = bench.watched(lambda: loss(out, weights).sum().backward())
            found["grad"] = grad(x)
    return {**found, "changed": not torch.equal(given.detach(), before)}


def shared(function: Callable, group: dist.ProcessGroup, seed: int, shape: Shape) -> dict:
    """Run f and g on tensors that other steps also need: a branch of f's input, an exp before g."""
    f, g = pair_of(function, group)
    *data, c, v, w = (numbers(seed, name, group.rank(), *shape) for name in "uxqxcvw")
    u, x, q, again = map(leaf, data)

    def run() -> tuple[Tensor, ...]:
        beside = FACTOR * u  # made before f, so that autograd reaches it after f
        (c * (beside + f(x))).sum().backward()
        p = q.exp()  # saves its result for the backward
        first, second = g(p), g(2 * p)
        ((first * v).sum() + (second * v).sum() + (p * c).sum()).backward()
        return p.detach().clone(), first.detach().clone(), second.detach().clone()

    (p, first, second), _ = bench.watched(run)
    found = {"u": grad(u), "x": grad(x), "q": grad(q), "p": p, "sums": [first, second]}
    bench.watched(lambda: (f(again) * c + f(again) * w).sum().backward())
    return {**found, "twice": grad(again)}


def at_once(function: Callable, group: dist.ProcessGroup, seed: int, shape: Shape) -> list[tuple]:
    """Run two live pairs: the second, for a group of only this rank, is created before the first is
    used, and runs between the first pair's forward and backward passes."""
    own, found = alone_in_a_group(), []
    x, w, v = (numbers(seed, name, group.rank(), *shape) for name in "xwv")

    def run() -> None:
        pairs, leaves = [function(group), function(own)], [leaf(x), leaf(x)]
        outs = [g(f(one) * w) for (f, g), one in zip(pairs, leaves, strict=True)]
        for one, y in zip(leaves, outs, strict=True):
            (y * v).sum().backward()
            found.append((y.detach().clone(), grad(one)))

    bench.watched(run)
    bench.end(own)
    return found


def shapes(
    function: Callable, group: dist.ProcessGroup, seed: int, kinds: list[tuple[Shape, str]]
) -> list[dict]:
    """Run f and g on tensors of several shapes and dtypes."""
    return [alone(function, group, seed, shape, dtype) for shape, dtype in kinds]


def layouts(function: Callable, group: dist.ProcessGroup, seed: int, shape: Shape) -> dict:
    """Run f and g with noncontiguous gradients and inputs: transposed, or one number expanded.

    It runs after `shared`, because an in-place sum would write to expanded memory.
    """
    (f, g), r = pair_of(function, group), group.rank()
    x, p = (leaf(numbers(seed, name, r, *shape)) for name in "xp")
    w = numbers(seed, "w", r, *shape[::-1])
    bench.watched(lambda: (f(x) * (r > 0)).sum().backward())  # no gradient comes back on one rank
    x.grad = None
    bench.watched(lambda: f(x).sum().backward())  # its gradient is a single 1, expanded
    ones, x.grad = grad(x), None
    y, _ = bench.watched(lambda: g(p.t()).detach().clone())
    data, before = p.detach().clone(), p.detach().clone()
    sums, _ = bench.watched(lambda: f(x.detach()) + g(data))  # no tensor needs a gradient
    bench.watched(lambda: (f(x.t()) * w).sum().backward())
    found = {"changed": not torch.equal(data, before), "data": sums.clone()}
    found |= {"ones": ones, "y": y, "x": grad(x)}
    # Stored by columns on the first rank, by rows on the others.
    stored, x.grad = p.detach().t().contiguous().t() if r == 0 else p.detach(), None
    apart, _ = bench.watched(lambda: g(stored).clone())
    out, _ = bench.watched(lambda: f(x))
    product = out.t() * w if r == 0 else out * w.t().contiguous()
    bench.watched(lambda: product.sum().backward())
    return {**found, "apart": [apart, grad(x)]}


def net(function: Callable, group: dist.ProcessGroup, seed: int, dims: Shape) -> list[dict]:
    """Run a network of two layers, the first sharded along its outputs and the second along its
    inputs, without and then with recomputed activations."""
    f, g = pair_of(function, group)
    mine = slice(*span(dims[2], group.size(), group.rank()))
    return [
        bench.watched(lambda again=again: trained(f, g, seed, dims, mine, again))[0]
        for again in (False, True)
    ]


def trained(
    f: Callable, g: Callable, seed: int, dims: Shape, mine: slice, again: bool = False
) -> dict[str, Tensor]:
    """Return the results of some steps of SGD with this rank's hidden units, `mine`."""
    rows, h, hidden, out = dims
    x, t = leaf(numbers(seed, "x", 0, rows, h)), numbers(seed, "t", 0, rows, out)
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

    losses = torch.tensor([step() for _ in range(STEPS)], dtype=torch.float64)
    return {
        "the loss": losses,
        "the gradient of x": grad(x),
        "the first weight": a.detach(),
        "the second weight": b.detach(),
    }
