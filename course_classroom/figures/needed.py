"""Collectives for changes of layout, and the possible products of sharded factors.

Both are derived from the notation, without tensors or ranks. `statement.py` draws the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from course_lib.layout import Dim, Layout

PARTIAL, REPLICATED = "partial sum", "replicated"
SLICE = "slice"


class Move(NamedTuple):
    """The operation over one axis between two layouts of a tensor; a slice sends no message."""

    op: str
    axis: str

    @property
    def sends(self) -> bool:
        return self.op != SLICE

    def __str__(self) -> str:
        article = "an" if self.op[0] == "a" else "a"
        return f"{article} {self.op} over {self.axis}{'' if self.sends else ' without a message'}"


def placement(layout: Layout, axis: str) -> str | int:
    """Return `PARTIAL`, `REPLICATED`, or the index of the dim that is sharded over the axis."""
    if axis in layout.owed:
        return PARTIAL
    return next((i for i, dim in enumerate(layout.dims) if axis in dim.axes), REPLICATED)


def collective(before: Layout, after: Layout, axis: str) -> Move | None:
    """Return the operation over `axis` that turns `before` into `after`; None if they agree."""
    old, new = placement(before, axis), placement(after, axis)
    if old == new:
        return None
    if new == PARTIAL:
        here = f"sharded along {before.dims[old].name}" if isinstance(old, int) else old
        raise ValueError(
            f"{before} -> {after}: a tensor {here} does not become a partial sum over {axis}. Only "
            f"a product whose contracted dim is sharded over {axis} gives a partial sum"
        )
    if old == PARTIAL:
        return Move("all-reduce" if new == REPLICATED else "reduce-scatter", axis)
    if old == REPLICATED:
        return Move(SLICE, axis)
    return Move("all-gather" if new == REPLICATED else "all-to-all", axis)


def collectives(before: Layout, after: Layout) -> tuple[Move, ...]:
    """Return all operations between two layouts of a tensor by axis, innermost first."""
    if [dim.name for dim in before.dims] != [dim.name for dim in after.dims]:
        raise ValueError(
            f"{before} -> {after}: a change of layout keeps the dims and their order, and changes "
            f"only @axis and {{axis}}"
        )
    for old, new in zip(before.dims, after.dims, strict=True):
        short, long = sorted((old.axes, new.axes), key=len)
        if long[: len(short)] != short and set(short) & set(long):
            raise ValueError(
                f"{before} -> {after}: {old} cannot become {new} in one step, because the axis "
                "that is written last is gathered first and sliced last"
            )
    axes = dict.fromkeys((*reversed(before.axes), *after.axes))
    found = (collective(before, after, axis) for axis in axes)
    return tuple(move for move in found if move is not None)


def completed(layout: Layout) -> Layout:
    """Return the same tensor after its partial sums are all-reduced."""
    return Layout(layout.name, layout.dims)


def check_result(inputs: Sequence[Layout], output: Layout) -> tuple[str, ...]:
    """Return the contracted dims; raise an error for a result that these factors cannot give."""
    line, factors = f"{' '.join(map(str, inputs))} -> {output}", _told_apart(inputs, output)
    sharded: dict[str, tuple[str, ...]] = {}  # dim → axes, from the factors
    for factor in factors:
        for dim in factor.dims:
            if sharded.setdefault(dim.name, dim.axes) != dim.axes:
                raise ValueError(f"{line}: {_unequal(dim.name, factors)}")
    kept = [dim.name for dim in output.dims]
    unknown = [name for name in kept if name not in sharded and not name.isdigit()]
    if len(factors) > 1 and unknown:
        raise ValueError(f"{line}: the result has a dim {unknown[0]} that no factor has")
    for axis in dict.fromkeys(axis for axes in sharded.values() for axis in axes):
        first, *others = (_plain(name) for name, axes in sharded.items() if axis in axes)
        if others:
            raise ValueError(
                f"{line}: {axis} shards {first} and {others[0]}, two dims of one product. "
                f"All-gather one factor first (write {first} without @{axis})"
            )
    partial = [axis for factor in factors for axis in factor.owed]
    twice = [axis for axis in partial if partial.count(axis) > 1]
    if twice:
        raise ValueError(
            f"{line}: two factors are partial sums over {twice[0]}. All-reduce one of them first"
        )
    contracted = {name: axes for name, axes in sharded.items() if name not in kept}
    causes = {
        axis: f"a factor is a partial sum over {axis}, so the product is too" for axis in partial
    }
    for name, axes in contracted.items():
        for axis in axes:
            causes[axis] = (
                f"the product contracts {_plain(name)}, which is sharded over {axis}, so each rank "
                "holds a partial sum"
            )
    for axis, cause in causes.items():
        if axis not in output.owed:
            dims = (Dim(d.name, tuple(a for a in d.axes if a != axis)) for d in output.dims)
            fixed = Layout(output.name, tuple(dims), (*output.owed, axis))
            raise ValueError(
                f"{line}: {cause}. Therefore {{{axis}}} is missing: write {fixed}, then -> {output}"
            )
    for axis in output.owed:
        if axis not in causes:
            raise ValueError(
                f"{line}: nothing is summed over {axis}. Shard the contracted dim over it, or "
                f"write {output.name} without {{{axis}}}"
            )
    local = tuple(Dim(d.name, sharded.get(d.name, d.axes)) for d in output.dims)
    for dim, here in zip(output.dims, local, strict=True):
        if dim != here:
            raise ValueError(
                f"{line}: {dim.name} is {_over(here.axes)} in the factors but {_over(dim.axes)} in "
                f"the result. Without a message the ranks compute {replace(output, dims=local)}, "
                f"so write that first, then -> {output}"
            )
    return tuple(map(_plain, contracted))


def _told_apart(inputs: Sequence[Layout], output: Layout) -> Sequence[Layout]:
    """Return the factors; two different dims with one name, as in A[h@tp, h], get marks.

    In `X[b, h] A[h, h@tp] -> Y[b, h@tp]` the last dim of X and the first of A are contracted.
    """
    if len(inputs) != 2 or not all(layout.dims for layout in inputs):
        return inputs
    left, right = inputs
    last, first = left.dims[-1], right.dims[0]
    outer = [dim.name for dim in (*left.dims[:-1], *right.dims[1:])]
    if first.name != last.name or last.name not in outer or outer != [d.name for d in output.dims]:
        return inputs
    left = replace(left, dims=(*left.dims[:-1], Dim(f"{last.name}·", last.axes)))
    return left, replace(right, dims=(Dim(f"{last.name}·", first.axes), *right.dims[1:]))


def _plain(name: str) -> str:
    return name.rstrip("·")


def _over(axes: tuple[str, ...]) -> str:
    return f"sharded over {' and '.join(axes)}" if axes else REPLICATED


def _unequal(name: str, factors: Sequence[Layout]) -> str:
    (first, axes), *others = ((f.name, d.axes) for f in factors for d in f.dims if d.name == name)
    second, other = next(one for one in others if one[1] != axes)
    remedy = "shard both over the same axis"
    if not axes or not other:
        dim = Dim(_plain(name), axes or other)
        remedy = f"slice {second if axes else first} (write {dim} in it: no message)"
    return (
        f"{_plain(name)} is {_over(axes)} in {first} but {_over(other)} in {second}, so blocks "
        f"that do not match would be multiplied. Either {remedy}, or all-gather the sharded factor"
    )
