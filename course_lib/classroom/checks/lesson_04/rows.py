"""Whose rows they are: a fused weight read row by row, and what the order of its rows says.

Every row of random numbers is found again in gate or in up, bit by bit, so a wrong order names the
idea behind it. For `fuse_gate_up` of lesson 04, with all that it has to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.words import Page
from course_lib.layout import cut, span

SAYS = Page("lesson_04/fuse_gate_up")
Row = tuple[str, int]  # ("gate", 4)


class Rows(NamedTuple):
    """What every rank got for one gate and one up."""

    reports: list[dict]
    gate: Tensor  # (f, h)
    up: Tensor  # (f, h)
    when: str

    @property
    def n(self) -> int:
        return len(self.reports)

    @property
    def f(self) -> int:
        return len(self.gate)

    @property
    def right(self) -> bool:
        return all(self.found(rank) == self.wanted(rank) for rank in range(self.n))

    def wanted(self, rank: int, n: int = 0) -> list[Row]:
        own = range(*span(self.f, n or self.n, rank))
        return [(kind, i) for kind in ("gate", "up") for i in own]

    def found(self, rank: int) -> list[Row] | None:
        """The rows that a rank holds, by name; None where a row is none of them."""
        out = self.reports[rank]["out"]
        if out is not None and self.gate.shape[1] == 1 and out.dim() == 1:
            out = out[:, None]
        if out is None or out.dim() != 2 or out.shape[1] != self.gate.shape[1]:
            return None
        same = (_bits(out)[:, None] == _bits(torch.cat((self.gate, self.up)))).all(-1)  # (rows, 2f)
        if not bool(same.any(1).all()):
            return None
        places = same.int().argmax(1).tolist()
        return [("gate", i) if i < self.f else ("up", i - self.f) for i in places]


def _bits(x: Tensor) -> Tensor:
    """The elements as they are stored: -0.0 is not 0.0."""
    return x.view(torch.int64 if x.dtype == torch.float64 else torch.int32)


def look_at_rows(one: Rows, right: Sequence[Rows]) -> None:
    """A Finding where some rank has other rows than its own; `right` are trials without fault."""
    if one.right:
        return
    found = [one.found(rank) for rank in range(one.n)]
    if None in found:
        raise _nobodys(one, one.reports[found.index(None)])
    rank = next(r for r, rows in enumerate(found) if rows != one.wanted(r))
    name, text = SAYS.of(_idea(one, found, right), f=one.f, n=one.n, sizes=cut(one.f, one.n))
    raise Finding(
        name, f"{text} {one.when.capitalize()}, rank {rank} holds {_listed(found[rank])}."
    )


def _nobodys(one: Rows, report: dict) -> Finding:
    """The Finding of a rank that holds something else than rows of gate and up."""
    when, h, shape, out = one.when, one.gate.shape[1], report["shape"], report["out"]
    for kind in ("float32", "bfloat16", "float16"):
        narrow = [t.to(getattr(torch, kind)).to(t.dtype) for t in (one.gate, one.up)]
        if Rows([report], *narrow, when).found(0):
            return SAYS("rounded on the way", kind=kind, when=when)
    if len(shape) == 2 and shape[1] != h and (shape[0] in (one.f, 2 * one.f) or shape[1] == 2 * h):
        return SAYS("the other dim", shape=shape, when=when)
    if out is not None and out.dim() == 2 and out.shape[1] == h:
        both = torch.cat((one.gate, one.up))
        if all((row - both).abs().amax(1).min() < 1e-6 for row in out):
            return SAYS("computed, not copied", when=when)
        if any(not row.any() for row in out):
            return SAYS("padded", shape=shape, when=when)
    return SAYS("wrong numbers", shape=shape, when=when, right=list(one.gate.shape))


def _idea(one: Rows, found: list[list[Row]], right: Sequence[Rows]) -> str:
    """The entry of the misconception that these rows show."""
    n, f = one.n, one.f
    everything = one.wanted(0, 1)
    gates, ups = (
        [[i for of, i in rows if of == kind] for rows in found] for kind in ("gate", "up")
    )
    joined = [row for rows in found for row in rows]
    halves = []  # of what each rank should have: gate's rows, up's rows
    for rank in range(n):
        wanted = one.wanted(rank)
        halves.append((wanted[: len(wanted) // 2], wanted[len(wanted) // 2 :]))
    pairs = list(zip(found, halves, strict=True))
    missing = sorted(set(range(f)) - {i for own in gates for i in own})
    together = gates == ups
    complete = together and sorted(i for own in gates for i in own) == list(range(f))
    signs = {
        "not cut": len(everything) in map(len, found),
        "one part for all": n > 1 and all(rows == found[0] for rows in found),
        "kept from an earlier call": n == 2 and found == [one.wanted(rank, 3) for rank in (1, 2)],
        "cut straight across": joined == everything
        or (joined == [*everything[f:], *everything[:f]] and gates[0] != ups[0]),
        "one of the two": not any(ups) or not any(gates),
        "interleaved": any(
            len(gate) > 1 and rows == [row for pair in zip(gate, up, strict=True) for row in pair]
            for rows, (gate, up) in pairs
        ),
        "halves exchanged": any(gate and rows == up + gate for rows, (gate, up) in pairs),
        "gates of other units": not together and [*map(len, gates)] == [*map(len, ups)],
        "remainder dropped": together and f % n > 0 and missing == list(range(f - f % n, f)),
        "dealt out": complete and gates == [list(range(rank, f, n)) for rank in range(n)],
        "another cut rule": complete and [*map(len, gates)] != cut(f, n),
        "uneven rows": right and all(other.f % other.n == 0 for other in right) and f % n,
    }
    return next((entry for entry, shown in signs.items() if shown), "wrong rows")


def _listed(rows: list[Row]) -> str:
    """Rows in words, with neighbours drawn together."""
    if not rows:
        return "no rows"
    runs: list[list] = []
    for kind, i in rows:
        if runs and runs[-1][0] == kind and runs[-1][2] == i - 1:
            runs[-1][2] = i
        else:
            runs.append([kind, i, i])
    told = [f"{kind} {a}" if a == b else f"{kind} {a} to {b}" for kind, a, b in runs[:6]]
    return "the rows " + ", ".join(told) + (" and more" if len(runs) > 6 else "")
