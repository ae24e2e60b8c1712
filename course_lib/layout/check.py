"""The checker, which tests whether a layout in the notation holds for the tensors on this rank.

Each rank checks its own shapes against the rule for sharding. With `values=True`, ranks compare the
values that should be equal or different too. Exercises use it from lesson 02 on.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from course_lib.layout.boxes import dim_span
from course_lib.layout.comparison import Axis, agree, compare
from course_lib.layout.cut import cut
from course_lib.layout.errors import LayoutError
from course_lib.layout.notation import Dim, Layout, Statement

Place = tuple[int, int]  # (rank along the axis, length of the axis)


def check(
    statement: str,
    *,
    axes: Mapping[str, Place | dist.ProcessGroup] | DeviceMesh | None = None,
    sizes: Mapping[str, int] | None = None,
    values: bool = False,
    tolerance: float | None = None,
    **tensors: Tensor,
) -> dict[str, int]:
    """Raise `LayoutError` unless the tensors are placed as `statement` says; return logical sizes.

    `check("X[b, h] W[h, f@tp] -> Y[b, f@tp]", X=x, W=w, Y=y, axes={"tp": group}, sizes={"f": 7})`.
    `axes` has (rank, world) or a process group for each axis, or is a mesh with named axes. A name
    gets its logical size from `sizes`, or from a tensor in which the dim is not sharded. A name
    that is sharded everywhere is only compared with itself. `values=True` makes this a collective
    call, which every rank of the groups must make. `tolerance` is the allowed difference between
    replicas, relative to their largest value (None means a few roundings).
    """
    read = Statement.parse(statement)
    places = _axes(axes)
    _same_names(read, tensors)
    local = {name: _local(name, value) for name, value in tensors.items()}
    if values and not any(axis.group is not None for axis in places.values()):
        raise ValueError("values=True compares ranks: give axes as process groups or as a mesh")
    problem, bound = None, {}
    try:
        bound = _shapes(read, local, places, dict(sizes or {}))
    except LayoutError as error:
        problem = error
    if values:
        agree(places, problem)  # a rank may compare only if all ranks do
    if problem is not None:
        raise problem
    if values:
        for layout in read.layouts:
            compare(layout, local[layout.name], places, tolerance)
    return bound


def _axes(axes: Mapping | DeviceMesh | None) -> dict[str, Axis]:
    if isinstance(axes, DeviceMesh):
        names = axes.mesh_dim_names
        if not names:
            raise ValueError("this mesh has no names for its axes; give it mesh_dim_names")
        axes = {name: axes.get_group(name) for name in names}
    places = {}
    for name, value in (axes or {}).items():
        if isinstance(value, tuple):
            rank, world = value
            if not 0 <= rank < world:
                raise ValueError(f"axes: there is no rank {rank} on {name}, which is {world} long")
            places[name] = Axis(name, rank, world, None)
        else:
            rank, world = dist.get_rank(value), dist.get_world_size(value)
            places[name] = Axis(name, rank, world, value)
    return places


def _same_names(read: Statement, tensors: Mapping[str, Tensor]) -> None:
    written = [layout.name for layout in read.layouts]
    missing = [name for name in written if name not in tensors]
    extra = [name for name in tensors if name not in written]
    if missing or extra:
        parts = [f"no tensor was passed for {', '.join(missing)}"] if missing else []
        parts += [f"{', '.join(extra)} does not appear in it"] if extra else []
        raise ValueError(f"check({str(read)!r}): {' and '.join(parts)}")


def _local(name: str, value: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}, not a tensor")
    return value.to_local() if hasattr(value, "to_local") else value.detach()


def _shapes(
    read: Statement, tensors: Mapping[str, Tensor], places: dict[str, Axis], sizes: dict[str, int]
) -> dict[str, int]:
    who = _who(places)
    source = dict.fromkeys(sizes, "sizes")
    for layout in read.layouts:
        shape = tuple(tensors[layout.name].shape)
        if len(shape) != len(layout.dims):
            raise LayoutError(
                f"{who}: {layout} has {len(layout.dims)} dims, but {layout.name} has "
                f"{len(shape)}, with shape {shape}"
            )
        for axis in layout.axes:
            if axis not in places:
                known = ", ".join(places) or "none"
                raise ValueError(f"{layout} names the axis {axis}, but axes= has {known}")
        for dim, length in zip(layout.dims, shape, strict=True):
            if dim.name.isdigit():
                sizes[dim.name], source[dim.name] = int(dim.name), "the number itself"
            elif not dim.axes and dim.name not in sizes:
                sizes[dim.name], source[dim.name] = length, f"{layout.name}{list(shape)}"
    seen: dict[Dim, tuple[int, str]] = {}
    for layout in read.layouts:
        shape = tuple(tensors[layout.name].shape)
        for position, (dim, length) in enumerate(zip(layout.dims, shape, strict=True)):
            if dim.name in sizes:
                start, stop = dim_span(sizes[dim.name], dim, _coords(places))
                expected, why = stop - start, _why(dim, sizes[dim.name], source[dim.name], places)
            else:
                expected, first = seen.setdefault(dim, (length, layout.name))
                why = (
                    f"{dim} is {expected} long in {first}; sizes={{{dim.name!r}: …}} can settle it"
                )
            if length != expected:
                hint = _hint(layout, shape, position, sizes, places)
                raise LayoutError(
                    f"{who}: {layout.name} has shape {shape}. Its dim {position}, {dim}, should be "
                    f"{expected} long but is {length}. {why}.{hint}"
                )
    return {name: size for name, size in sizes.items() if not name.isdigit()}


def _hint(
    layout: Layout,
    shape: tuple[int, ...],
    position: int,
    sizes: Mapping[str, int],
    places: dict[str, Axis],
) -> str:
    """Return a hint that names the likely mistake, if the shape reveals it."""
    dim, length = layout.dims[position], shape[position]
    whole, coords = sizes.get(dim.name), _coords(places)
    known = all(d.name in sizes for d in layout.dims)
    if known and len(shape) == 2:
        right = [_length(sizes[d.name], d, coords) for d in layout.dims]
        if list(shape) == right[::-1]:
            return " Are its two dims swapped? torch.nn.Linear keeps its weight as [out, in]"
    if whole is None:
        return ""
    if dim.axes:
        over = " and ".join(dim.axes)
        if length == whole:
            return (
                f" It holds all {whole}. Is it sharded over {over}? If replicated, write {dim.name}"
            )
        if len(dim.axes) > 1 and length == _length(whole, Dim(dim.name, dim.axes[::-1]), coords):
            order = ", then ".join(dim.axes[::-1])
            return f" It looks sharded over {order}; @({', '.join(dim.axes)}) means the other order"
        axis = places[dim.axes[0]]
        even = whole // axis.world + (axis.rank < whole % axis.world)
        if len(dim.axes) == 1 and length in (even, whole // axis.world):
            return f" Dims are sharded as torch.chunk does: {cut(whole, axis.world)}"
        return ""
    for axis in places.values():
        if axis.name not in layout.axes and length == _length(whole, Dim("", (axis.name,)), coords):
            return f" Is it sharded over {axis.name}? Then write {dim.name}@{axis.name}"
    return ""


def _why(dim: Dim, whole: int, source: str, places: dict[str, Axis]) -> str:
    known = f"{dim.name} is {whole} in all (from {source})"
    if not dim.axes:
        return known
    if len(dim.axes) > 1:
        return f"{known}, sharded over {', then '.join(dim.axes)}"
    axis = places[dim.axes[0]]
    return f"{known}, which is {cut(whole, axis.world)} over the {axis.world} ranks of {axis.name}"


def _length(whole: int, dim: Dim, coords: Mapping[str, Place]) -> int:
    start, stop = dim_span(whole, dim, coords)
    return stop - start


def _coords(places: dict[str, Axis]) -> dict[str, Place]:
    return {name: (axis.rank, axis.world) for name, axis in places.items()}


def _who(places: dict[str, Axis]) -> str:
    return ", ".join(f"{axis.name} rank {axis.rank}" for axis in places.values()) or "one process"
