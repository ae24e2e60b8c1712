"""Which collective a change of layout needs, and which products of sharded factors there can be.

Read from the notation alone: no tensors, no ranks. `statement.py` draws what is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from course_lib.layout import Layout

PARTIAL, REPLICATED = "partial sum", "replicated"
SLICE = "slice"


class Move(NamedTuple):
    """What one axis has to do between two layouts of a tensor; a slice sends no message."""

    op: str
    axis: str

    @property
    def sends(self) -> bool:
        return self.op != SLICE


def placement(layout: Layout, axis: str) -> str | int:
    """`PARTIAL`, `REPLICATED`, or the index of the dim that is sharded over the axis."""
    if axis in layout.owed:
        return PARTIAL
    return next((i for i, dim in enumerate(layout.dims) if axis in dim.axes), REPLICATED)


def collective(before: Layout, after: Layout, axis: str) -> Move | None:
    """The one operation over `axis` that turns `before` into `after`; None if they agree there."""
    old, new = placement(before, axis), placement(after, axis)
    if old == new:
        return None
    if new == PARTIAL:
        raise ValueError(
            f"{before} -> {after}: what is {_said(before, old)} does not become a partial sum over "
            f"{axis}, no collective does that; a partial sum is left by a product whose contracted "
            f"dim is sharded over {axis}"
        )
    if old == PARTIAL:
        return Move("all-reduce" if new == REPLICATED else "reduce-scatter", axis)
    if old == REPLICATED:
        return Move(SLICE, axis)
    return Move("all-gather" if new == REPLICATED else "all-to-all", axis)


def collectives(before: Layout, after: Layout) -> tuple[Move, ...]:
    """Every operation between two layouts of one tensor, an axis at a time, innermost first."""
    if [dim.name for dim in before.dims] != [dim.name for dim in after.dims]:
        raise ValueError(
            f"{before} -> {after}: a change of layout keeps the dims and their order; write the "
            f"same dims on both sides and move only @axis and {{axis}}"
        )
    for old, new in zip(before.dims, after.dims, strict=True):
        short, long = sorted((old.axes, new.axes), key=len)
        if long[: len(short)] != short and set(short) & set(long):
            raise ValueError(
                f"{before} -> {after}: {old} does not become {new} in one step; the axis that is "
                f"written last is gathered first, and sliced last"
            )
    axes = dict.fromkeys((*reversed(before.axes), *after.axes))
    found = (collective(before, after, axis) for axis in axes)
    return tuple(move for move in found if move is not None)


def completed(layout: Layout) -> Layout:
    """The same tensor after its partial sums are all-reduced."""
    return Layout(layout.name, layout.dims)


def check_result(inputs: Sequence[Layout], output: Layout) -> tuple[str, ...]:
    """The dims that the product contracts; a result that these factors cannot leave is refused."""
    line = f"{' '.join(map(str, inputs))} -> {output}"
    factors, result = _told_apart(inputs, output)
    sharded: dict[str, tuple[str, ...]] = {}  # dim → axes, from the factors
    for factor in factors:
        for dim in factor.dims:
            if sharded.setdefault(dim.name, dim.axes) != dim.axes:
                raise ValueError(_unequal(line, dim.name, factors))
    kept = {dim.name for dim in result.dims}
    unknown = [name for name in kept if name not in sharded and not name.isdigit()]
    if len(factors) > 1 and unknown:
        raise ValueError(
            f"{line}: the result has a dim {unknown[0]}, and no factor has one of that name; a dim "
            f"that stays keeps its name"
        )
    contracted = [name for name in sharded if name not in kept]
    for axis in dict.fromkeys(axis for axes in sharded.values() for axis in axes):
        dims = [name for name, axes in sharded.items() if axis in axes]
        if len(dims) > 1:
            raise ValueError(
                f"{line}: {axis} shards {_plain(dims[0])} and {_plain(dims[1])}, two dims of one "
                f"product; each rank could compute its diagonal block alone. All-gather one of the "
                f"two factors over {axis} first (write {_plain(dims[0])} without @{axis})"
            )
    partial = [axis for factor in factors for axis in factor.owed]
    twice = [axis for axis in partial if partial.count(axis) > 1]
    if twice:
        raise ValueError(
            f"{line}: two factors are partial sums over {twice[0]}, and the product of two sums is "
            f"not the sum of the products; all-reduce one of them first"
        )
    summed = [axis for name in contracted for axis in sharded[name]]
    for axis in dict.fromkeys((*summed, *partial)):
        if axis not in result.owed:
            fixed = Layout(output.name, output.dims, (*output.owed, axis)) if (
                axis not in output.axes
            ) else completed(output)  # fmt: skip
            cause = (
                f"the product contracts {_plain(next(n for n in contracted if axis in sharded[n]))}"
                f", which is sharded over {axis}, so each rank holds a partial sum"
                if axis in summed
                else f"a factor is a partial sum over {axis}, and so is the product"
            )
            raise ValueError(
                f"{line}: {cause}. Missing is {{{axis}}}: write {fixed}"
                f"{f', then -> {output}' if axis not in summed or fixed != output else ''}"
            )
    for axis in result.owed:
        if axis not in summed and axis not in partial:
            raise ValueError(
                f"{line}: nothing is summed over {axis}, no contracted dim is sharded over it. "
                f"Write {output.name} without {{{axis}}}, or shard the contracted dim"
            )
    for dim in result.dims:
        have = sharded.get(dim.name)
        if have is not None and have != dim.axes:
            local = Layout(output.name, tuple(
                type(d)(o.name, sharded.get(d.name, d.axes))
                for d, o in zip(result.dims, output.dims, strict=True)
            ), output.owed)  # fmt: skip
            raise ValueError(
                f"{line}: in the factors {_plain(dim.name)} is {_over(have)}, in the result "
                f"{_over(dim.axes)}. Without a message the ranks compute {local}: write that, then "
                f"-> {output}"
            )
    return tuple(map(_plain, contracted))


def _told_apart(inputs: Sequence[Layout], output: Layout) -> tuple[list[Layout], Layout]:
    """Dims that share a name and are two, as in A[h@tp, h], get a mark each.

    In `X[b, h] A[h, h@tp] -> Y[b, h@tp]` the last dim of X and the first of A are contracted.
    """
    factors = list(inputs)
    if len(factors) == 2 and factors[0].dims and factors[1].dims:
        left, right = factors
        names = [d.name for d in (*left.dims[:-1], *right.dims[1:])]
        inner = left.dims[-1].name
        if (
            right.dims[0].name == inner
            and names == [d.name for d in output.dims]
            and inner in names
        ):
            mark = type(left.dims[-1])
            left = Layout(
                left.name, (*left.dims[:-1], mark(inner + "·", left.dims[-1].axes)), left.owed
            )
            first = mark(inner + "·", right.dims[0].axes)
            right = Layout(right.name, (first, *right.dims[1:]), right.owed)
            factors = [left, right]
    return factors, output


def _plain(name: str) -> str:
    return name.rstrip("·")


def _over(axes: tuple[str, ...]) -> str:
    return f"sharded over {' and '.join(axes)}" if axes else REPLICATED


def _said(layout: Layout, at: str | int) -> str:
    return f"sharded along {layout.dims[at].name}" if isinstance(at, int) else str(at)


def _unequal(line: str, name: str, factors: Sequence[Layout]) -> str:
    having = [(f.name, d) for f in factors for d in f.dims if d.name == name]
    (first, one), (second, other) = (
        having[0],
        next(h for h in having if h[1].axes != having[0][1].axes),
    )
    if not one.axes or not other.axes:
        loose, axes = (first, other.axes) if not one.axes else (second, one.axes)
        where = axes[0] if len(axes) == 1 else f"({', '.join(axes)})"
        remedy = f"slice {loose} (write {_plain(name)}@{where} in it: no message)"
    else:
        remedy = "bring both to one axis"
    return (
        f"{line}: {_plain(name)} is {_over(one.axes)} in {first} and {_over(other.axes)} in "
        f"{second}, so blocks meet that do not belong together. Either {remedy}, or all-gather the "
        f"sharded factor"
    )
