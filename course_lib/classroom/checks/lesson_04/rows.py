"""Whose rows they are: a fused weight read row by row, and what the order of its rows says.

Every row of random numbers is found again in gate or in up, so a wrong order names the idea
behind it. For `fuse_gate_up` of lesson 04.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.finding import Finding
from course_lib.layout import cut, span

Row = tuple[str, int]  # ("gate", 4)
_STRAIGHT = (
    "Gate and up were joined first and the joint weight was cut straight across: the first ranks "
    "have rows of gate alone, the last ones of up alone. A unit's row of up belongs with its row "
    "of gate, on one rank."
)


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

    def wanted(self, rank: int) -> list[Row]:
        own = range(*span(self.f, self.n, rank))
        return [("gate", i) for i in own] + [("up", i) for i in own]

    def found(self, rank: int) -> list[Row] | None:
        """The rows that a rank holds, by name; None where a row is none of them."""
        out = self.reports[rank]["out"]
        if out is not None and self.gate.shape[1] == 1 and out.dim() == 1:
            out = out[:, None]
        if out is None or out.dim() != 2 or out.shape[1] != self.gate.shape[1]:
            return None
        both = torch.cat((self.gate, self.up))  # (2f, h)
        same = (out[:, None] == both).all(-1)  # (rows, 2f)
        if not bool(same.any(1).all()):
            return None
        places = same.int().argmax(1).tolist()
        return [("gate", i) if i < self.f else ("up", i - self.f) for i in places]


def look_at_rows(one: Rows, right: Sequence[Rows]) -> None:
    """A Finding where some rank has other rows than its own; `right` are trials without fault."""
    if one.right:
        return
    found = [one.found(rank) for rank in range(one.n)]
    known = [rows for rows in found if rows is not None]
    if len(known) < len(found):
        raise _nobodys(one)
    evidence = _evidence(one, known)
    for name, text in _ideas(one, known):
        raise Finding(name, f"{text} {evidence}")
    if right and all(other.f % other.n == 0 for other in right) and one.f % one.n:
        raise Finding(
            "uneven rows", f"Rows that divide by the ranks come out right, others not. {evidence}"
        )
    raise Finding("wrong rows", f"Not every rank has its own rows of gate, then of up. {evidence}")


def _nobodys(one: Rows) -> Finding:
    report = next(r for rank, r in enumerate(one.reports) if one.found(rank) is None)
    h, shape, out = one.gate.shape[1], report["shape"], report["out"]
    for kind in ("float32", "bfloat16", "float16"):
        narrow = [t.to(getattr(torch, kind)).to(t.dtype) for t in (one.gate, one.up)]
        rounded = Rows([{**report, "out": out}], *narrow, one.when)
        if rounded.found(0):
            return Finding(
                "rounded on the way",
                f"The rows went through {kind} {one.when}: they are near those of gate and up, and "
                "not the same. A checkpoint's weights are copied bit by bit, in their own dtype.",
            )
    if len(shape) == 2 and shape[0] in (one.f, 2 * one.f) and shape[1] != h:
        return Finding(
            "the other dim",
            f"A rank got shape {shape} {one.when}: cut or joined along the second dim, the inputs. "
            "Column-parallel means the outputs, and torch.nn.Linear keeps those in dim 0.",
        )
    if out is not None and out.dim() == 2 and out.shape[1] == h:
        both = torch.cat((one.gate, one.up))
        if all((row - both).abs().amax(1).min() < 1e-6 for row in out):
            return Finding(
                "computed, not copied",
                f"Each row is near a row of gate or of up, and not the same {one.when}. A "
                "checkpoint's weights are copied bit by bit: nothing is computed with them.",
            )
        if any(not row.any() for row in out):
            return Finding(
                "padded",
                f"A rank got a tensor of shape {shape} {one.when}, with rows of zeros in it. The "
                "layer cuts its output in the middle and multiplies it with `down`, whose columns "
                "are those of the rank's own units: every row has to be one of gate or up.",
            )
    return Finding(
        "wrong numbers",
        f"A rank got a tensor of shape {shape} {one.when} in which not every row is a row of gate "
        f"or of up; each of those has shape {list(one.gate.shape)}.",
    )


def _ideas(one: Rows, found: list[list[Row]]):
    """The misconceptions that these rows show: name and text."""
    n, f = one.n, one.f
    everything = [("gate", i) for i in range(f)] + [("up", i) for i in range(f)]
    gates = [[i for kind, i in rows if kind == "gate"] for rows in found]
    ups = [[i for kind, i in rows if kind == "up"] for rows in found]
    if any(len(rows) == 2 * f for rows in found):
        yield "not cut", "A rank has all rows of both: nothing was cut, so nothing is saved."
    if n > 1 and all(rows == found[0] for rows in found):
        yield (
            "one part for all",
            "All ranks have the same rows. Which part is a rank's own follows from its number in "
            "the group.",
        )
    if n == 2 and all(
        rows == one._replace(reports=[{}] * 3).wanted(rank)
        for rank, rows in zip((1, 2), found)  # noqa: B905
    ):
        yield (
            "kept from an earlier call",
            "These are the rows that the rank had in the group of three, which was asked before. "
            "What a rank's rows are follows from the group of this call.",
        )
    joined = [row for rows in found for row in rows]
    if joined == everything:
        yield "cut straight across", _STRAIGHT
    if joined == [*everything[f:], *everything[:f]] and gates[0] != ups[0]:
        yield "cut straight across", _STRAIGHT
    if not any(ups) or not any(gates):
        yield (
            "one of the two",
            "Only one of gate and up is there; the layer needs its rows of both.",
        )
    for rank, rows in enumerate(found):
        wanted = one.wanted(rank)
        half = len(wanted) // 2
        if half > 1 and rows == [row for pair in zip(wanted[:half], wanted[half:]) for row in pair]:  # noqa: B905
            yield (
                "interleaved",
                "Each row of gate is followed by its row of up. That keeps them together, but the "
                "layer's forward cuts its output in the middle: first all of gate, then all of up.",
            )
        if half and rows == wanted[half:] + wanted[:half]:
            yield (
                "halves exchanged",
                "Up stands before gate. The layer applies SiLU to the first half of its output and "
                "leaves the second as it is: exchanged, the wrong half gets SiLU, silently.",
            )
    if all(g == u for g, u in zip(gates, ups, strict=True)):
        yield from _of_the_cut(one, gates)
    elif all(len(g) == len(u) for g, u in zip(gates, ups, strict=True)):
        yield (
            "gates of other units",
            "Rows of up are together with the gates of other units. They are multiplied with each "
            "other, row by row: their numbers have to be the same.",
        )


def _of_the_cut(one: Rows, units: list[list[int]]):
    """Gate and up go together; it is the choice of the units that differs from the cut rule."""
    n, f = one.n, one.f
    if sorted(i for own in units for i in own) != list(range(f)):
        missing = sorted(set(range(f)) - {i for own in units for i in own})
        if missing == list(range(f - f % n, f)):
            yield (
                "remainder dropped",
                f"{f} rows do not divide by {n}, and the last of them belong to no rank.",
            )
        return
    if units == [list(range(rank, f, n)) for rank in range(n)]:
        yield (
            "dealt out",
            "The units were dealt out like cards. Together they are complete, but `down` was cut "
            "into blocks: each of its columns would meet the number of another unit.",
        )
    if [len(own) for own in units] != cut(f, n):
        yield (
            "another cut rule",
            f"Each rank has whole units, but not as many as the course's rule gives it, "
            f"{cut(f, n)}. `down` is cut by that rule, as torch.chunk cuts, and has to meet them.",
        )


def _evidence(one: Rows, found: list[list[Row]]) -> str:
    """What the first wrong rank holds, and how many rows it should be."""
    rank = next(r for r, rows in enumerate(found) if rows != one.wanted(r))
    return f"{one.when.capitalize()}, rank {rank} holds {_listed(found[rank])}."


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
