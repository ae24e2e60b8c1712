"""The notation: `X[b, s, h]`, `W[h, f@tp]` sharded over axis tp, `Y[b, s, h]{tp}` a partial sum.

A name in brackets is a dim, which has the same logical size everywhere. A tensor is replicated over
an axis if it is neither sharded over it nor a partial sum. Lesson 02 introduces the notation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = r"[A-Za-z_][A-Za-z0-9_']*"
_TENSOR = re.compile(rf"\s*({_NAME})\s*\[([^\[\]]*)\]\s*(?:\{{([^{{}}]*)\}})?")
_DIM = re.compile(rf"({_NAME}|\d+)\s*(?:@\s*(?:({_NAME})|\(([^()]*)\)))?")
_EXAMPLES = "write X[b, s, h], W[h, f@tp], W[h, f@(dp, tp)] or Y[b, s, h]{tp}"


@dataclass(frozen=True)
class Dim:
    """One dim: its name (or its size as a number) and the axes that shard it, outermost first."""

    name: str
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.axes:
            return self.name
        return (
            f"{self.name}@{self.axes[0]}"
            if len(self.axes) == 1
            else (f"{self.name}@({', '.join(self.axes)})")
        )


@dataclass(frozen=True)
class Layout:
    """The layout of one tensor on the ranks. `Layout.parse` is the inverse of `str(layout)`."""

    name: str
    dims: tuple[Dim, ...]
    owed: tuple[str, ...] = ()  # axes over which it is a partial sum, still to be all-reduced

    def __post_init__(self) -> None:
        used = [axis for dim in self.dims for axis in dim.axes] + list(self.owed)
        for axis in used:
            if used.count(axis) > 1:
                where = (
                    "shards it and is one of a partial sum"
                    if axis in self.owed and self.owed.count(axis) == 1
                    else "appears twice"
                )
                raise ValueError(
                    f"{self}: the axis {axis} {where}, but along one axis a tensor is sharded "
                    f"once, or a partial sum, or replicated"
                )

    @staticmethod
    def parse(text: str) -> Layout:
        """Parse one tensor's layout. `@(dp, tp)` means sharded over dp, then each piece over tp."""
        found = _TENSOR.fullmatch(text.rstrip())
        if found is None:
            raise ValueError(f"cannot read {text.strip()!r} as a layout; {_EXAMPLES}")
        name, inside, owed = found.groups()
        dims = tuple(_dim(part, text) for part in _parts(inside))
        return Layout(name, dims, _axes(owed, text) if owed is not None else ())

    def __str__(self) -> str:
        owed = f"{{{', '.join(self.owed)}}}" if self.owed else ""
        return f"{self.name}[{', '.join(str(dim) for dim in self.dims)}]{owed}"

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis that the layout mentions."""
        return tuple(axis for dim in self.dims for axis in dim.axes) + self.owed

    @property
    def cut_axes(self) -> tuple[str, ...]:
        """The axes that shard some dim."""
        return tuple(axis for dim in self.dims for axis in dim.axes)


@dataclass(frozen=True)
class Statement:
    """Inputs and outputs of a computation: `X[b, h] W[h, f@tp] -> Y[b, f@tp]`."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]

    @staticmethod
    def parse(text: str) -> Statement:
        """Parse consecutive layouts, with an optional `->` between inputs and outputs."""
        sides = text.split("->")
        if len(sides) > 2:
            raise ValueError(f"{text.strip()!r} has {len(sides) - 1} arrows; one at most")
        read = [tuple(_tensors(side)) for side in sides]
        statement = Statement(*read) if len(read) == 2 else Statement(read[0], ())
        names = [layout.name for layout in statement.layouts]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{text.strip()!r} describes {name} twice; give each its own name")
        if not names:
            raise ValueError(f"{text.strip()!r} describes no tensor; {_EXAMPLES}")
        return statement

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """All layouts, in reading order."""
        return self.inputs + self.outputs

    def __str__(self) -> str:
        sides = [" ".join(map(str, side)) for side in (self.inputs, self.outputs)]
        return " -> ".join(sides) if self.outputs else sides[0]


def _tensors(text: str) -> list[Layout]:
    layouts, rest = [], text.strip(" \t\n,")
    while rest:
        found = _TENSOR.match(rest)
        if found is None:
            raise ValueError(f"cannot read on at {rest!r}; {_EXAMPLES}")
        layouts.append(Layout.parse(found.group(0)))
        rest = rest[found.end() :].strip(" \t\n,")
    return layouts


def _parts(inside: str) -> list[str]:
    """Split a text at commas outside parentheses. Empty brackets give no dims."""
    if not inside.strip():
        return []
    return [part.strip() for part in re.split(r",(?![^()]*\))", inside)]


def _dim(part: str, text: str) -> Dim:
    found = _DIM.fullmatch(part)
    if found is None:
        raise ValueError(f"cannot read the dim {part!r} in {text.strip()!r}; {_EXAMPLES}")
    name, axis, several = found.groups()
    if several is not None:
        return Dim(name, _axes(several, text))
    return Dim(name, (axis,) if axis else ())


def _axes(inside: str, text: str) -> tuple[str, ...]:
    axes = tuple(part.strip() for part in inside.split(","))
    for axis in axes:
        if not re.fullmatch(_NAME, axis):
            raise ValueError(f"{axis!r} names no axis in {text.strip()!r}; {_EXAMPLES}")
    return axes
