"""What runs on the judge's ranks for `shard_of_all`: a model of which no rank uses everything.

A head is tied to its table, each rank goes through a branch of its own, one parameter is frozen,
one used by no rank, and one has a gradient that is zero. Lesson 10.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.collectives.call import Group

WORDS, BRANCHES, STEPS, EMPTY = 7, 4, 3, 2
Named = list[tuple[str, nn.Parameter]]


class Net(nn.Module):
    """An embedding, a branch, and a head whose weight is the embedding again."""

    def __init__(self, seed: int):
        super().__init__()
        made = torch.Generator().manual_seed(seed)
        wide = 3 + seed % 3

        def numbers(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=made, dtype=torch.float64))

        self.table = numbers(WORDS, wide)
        self.silent = numbers(2)  # multiplied by zero: its gradient is there, and is zero
        self.branches = nn.ParameterList(numbers(wide, wide) for _ in range(BRANCHES))
        total = WORDS * (wide + 2) + 2 + BRANCHES * wide**2
        self.spare = numbers(5 + (2 - total) % 6)  # in no forward; neither 2 nor 3 divide the sum
        self.frozen = numbers(wide).requires_grad_(False)
        self.head = self.table
        self.bias, self.shift = (nn.Parameter(torch.zeros_like(self.table[:, 0])) for _ in "ab")

    def forward(self, ids: Tensor, branch: int) -> Tensor:
        x = torch.tanh(self.table[ids] @ self.branches[branch]) + self.frozen
        return F.linear(x + self.shift.mean(), self.head, self.bias) + 0.0 * self.silent.sum()


def warm() -> None:
    net = Net(0)
    F.cross_entropy(net(torch.tensor([1, 2]), 0), torch.tensor([2, 3])).backward()


def named(net: Net) -> Named:
    """All names, the tied weight's two among them."""
    return list(net.named_parameters(remove_duplicate=False))


def loss_of(net: Net, seed: int, step: int, rank: int, n: int) -> Tensor:
    """A rank's loss; in each step it takes another branch, and one branch is no rank's.

    In a step beyond them the last rank of three has no rows, and a gradient for nothing.
    """
    if step == STEPS and rank == EMPTY:
        return torch.zeros((), dtype=torch.float64, requires_grad=True).square()
    made = torch.Generator().manual_seed(seed * 1009 + 31 * step + rank)
    ids, targets = torch.randint(WORDS, (2, 3 + rank), generator=made).unbind()
    return F.cross_entropy(net(ids, (rank + step) % (n + 1)), targets)


def train(function: Callable, group: Group, seed: int, empty: bool = False) -> list[dict]:
    """Three steps, each after a plain descent by the right sums; or one with an empty rank."""
    net, told, kept = Net(seed), [], []
    for step in [STEPS] if empty else range(STEPS):
        report, sums, out = _step(function, net, seed, step, group)
        told.append(report)
        report["spoiled"] = any(
            not torch.equal(shard, before) or _names(names) != said
            for shard, before, names, said in kept
        )
        if report["shape"] is not None:
            kept.append((out[0], out[0].detach().clone(), out[1], _names(out[1])))
        with torch.no_grad():
            for p, grad in sums.items():
                p -= 0.05 * grad
    return told


def _step(
    function: Callable, net: Net, seed: int, step: int, group: Group
) -> tuple[dict, dict[Tensor, Tensor], object]:
    n, rank = group.size(), group.rank()
    given = named(net)
    trained = [p for p in dict.fromkeys(p for _, p in given) if p.requires_grad]
    first = {}
    for name, p in given:
        first.setdefault(p, name)
    each = []
    for r in range(n):
        loss = loss_of(net, seed, step, r, n)
        each.append(torch.autograd.grad(loss, trained, allow_unused=True))
    sums = {
        p: sum((g for g in grads if g is not None), torch.zeros_like(p))
        for p, grads in zip(trained, zip(*each, strict=True), strict=True)
    }
    used = {first[p] for p, *grads in zip(trained, *each, strict=True)
            if any(g is not None for g in grads)}  # fmt: skip
    mine = {first[p] for p, g in zip(trained, each[rank], strict=True) if g is not None}
    by_all = {first[p] for p, *grads in zip(trained, *each, strict=True)
              if all(g is not None for g in grads)}  # fmt: skip
    nonzero = {first[p] for p, g in sums.items() if g.abs().sum() > 0}
    for _, p in given:
        p.grad = None
    loss, handed = loss_of(net, seed, step, rank, n), list(given)
    out, facts = bench.watched(lambda: function(loss, handed, group))
    changed = [name for name, _ in handed] != [name for name, _ in given]
    changed |= [p for p in dict.fromkeys(p for _, p in given) if p.requires_grad] != trained
    net.requires_grad_(True).frozen.requires_grad_(False)
    pair = isinstance(out, (tuple, list)) and len(out) == 2
    shard, said = out if pair else (None, None)
    is_tensor = bench.plain(shard)
    names = _names(said)
    flat = torch.cat([sums[p].flatten() for p in trained])
    last = {p: name for name, p in given}
    said = {
        "right": used,
        "its own": mine,
        "by all": by_all,
        "nonzero": nonzero,
        "all": {first[p] for p in trained},
        "all names": {name for name, _ in given},
        "both names": {name for name, p in given if first[p] in used},
        "the last names": {last[p] for p in trained if first[p] in used},
        "not frozen": {name for name, p in given if p.requires_grad},
    }
    report = {
        "kind": bench.kind(out),
        "changed": changed,
        "pair": pair,
        "first": bench.kind(shard),
        "shape": list(shard.shape) if is_tensor else None,
        "wanted": -(-len(flat) // n),
        "of its own": -(-sum(p.numel() for p in trained if first[p] in mine) // n),
        "ideas": readings(shard, given, trained, sums, each, rank) if is_tensor else [],
        "names": None if names is None else sorted(map(str, names)),
        "names are": [idea for idea, want in said.items() if names == want],
        "left": [name for name, p in given if p.grad is not None],
        "ops": facts["ops"],
        "bytes": facts["bytes"],
        "must": -(-len(flat) // n) * (n - 1) * 8,
        "flags": len(given) * 2 * (n - 1) / n,
        "held": shard.untyped_storage().nbytes() if is_tensor else 0,
    }
    for _, p in given:
        p.grad = None
    return report, sums, out


def _names(said: object) -> set | None:
    """A set, a list or anything else of names; a dictionary from names to yes or no."""
    if isinstance(said, dict):
        return {name for name, yes in said.items() if yes}
    if isinstance(said, (set, frozenset, list, tuple)) and all(isinstance(s, str) for s in said):
        return set(said)
    return None


def readings(
    got: Tensor,
    given: Named,
    trained: list[Tensor],
    sums: dict[Tensor, Tensor],
    each: list[tuple],
    rank: int,
) -> list[str]:
    """The ideas that explain the shard that this rank gave back."""
    n, own = len(each), zip(trained, each[rank], strict=True)
    mine = {p: torch.zeros_like(p) if g is None else g for p, g in own}
    everything = {**{p: torch.zeros_like(p) for _, p in given}, **sums}
    by_name = [p for _, p in given]

    def padded(flat: Tensor, front: bool = False) -> Tensor:
        return F.pad(flat, (-len(flat) % n, 0) if front else (0, -len(flat) % n))

    def cut(
        of: dict,
        order: list[Tensor],
        piece: int | None = rank,
        each: bool = False,
        front: bool = False,
    ) -> Tensor:
        parts = [of[p].detach().flatten() for p in order]
        flat = padded(torch.cat([padded(p) for p in parts] if each else parts), front)
        return flat if piece is None else flat.chunk(n)[piece]

    once = list(dict.fromkeys(by_name))
    name_of = {p: name for name, p in reversed(given)}
    unlike = [p for i, p in enumerate(trained) if not any(_equal(p, q) for q in trained[:i])]
    users = {p: sum(grads[i] is not None for grads in each) for i, p in enumerate(trained)}
    over_users = {p: sums[p] / max(1, users[p]) for p in trained}
    ideas = {
        "right": cut(sums, trained),
        "rounded": cut(sums, trained),
        "a mean": cut(sums, trained) / n,
        "a mean over its users": cut(over_users, trained),
        "equal ones once": cut(sums, unlike),
        "one of a shape": cut(sums, list({p.shape: p for p in trained[::-1]}.values())[::-1]),
        "unused left out": cut(sums, [p for p in trained if users[p]]),
        "sorted": cut(sums, sorted(trained, key=name_of.__getitem__)),
        "turned, once": cut(sums, trained[::-1]),
        "padded each": cut(sums, trained, each=True),
        "padded in front": cut(sums, trained, front=True),
        "its own": cut(mine, trained),
        "tied twice": cut(sums, [p for p in by_name if p.requires_grad]),
        "frozen too": cut(everything, once),
        "tied twice, frozen too": cut(everything, by_name),
        "whole": cut(sums, trained, None),
        "turned": cut(sums, list(dict.fromkeys(p for p in by_name[::-1] if p.requires_grad))),
        "the last mention": cut(sums, list(dict.fromkeys(p for p in by_name[::-1]
                                                         if p.requires_grad))[::-1]),
    }  # fmt: skip
    return [name for name, want in ideas.items() if _same(got, want, name == "rounded")]


def _same(got: Tensor, want: Tensor, loose: bool = False) -> bool:
    if got.shape != want.shape or (got.dtype != want.dtype and not loose):
        return False
    rtol, atol = (1e-5, 1e-6 * float(want.abs().max())) if loose else (1e-9, 1e-12)
    return torch.allclose(got.detach().to(want.dtype), want, rtol=rtol, atol=atol)


def _equal(p: Tensor, q: Tensor) -> bool:
    return p.shape == q.shape and torch.equal(p, q)
