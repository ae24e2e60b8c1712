"""Storages, which are the actual memory of tensors, views and tied weights.

This file finds the storages of any object, and all storages alive in the process. Lesson 01 uses it
to list the memory of a rank, and lesson 09 to count sixteen bytes per parameter.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, UntypedStorage


def plain_tensors(value: object) -> Iterator[Tensor]:
    """Yield every ordinary tensor in `value`, inside lists, dicts, DTensors and other wrappers."""
    if isinstance(value, Tensor):
        if hasattr(type(value), "__tensor_flatten__"):  # DTensor, AsyncCollectiveTensor, …
            for name in value.__tensor_flatten__()[0]:
                yield from plain_tensors(getattr(value, name))
        elif value.layout == torch.strided:
            yield value
        elif value.layout == torch.sparse_coo:
            yield from (value._indices(), value._values())
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from plain_tensors(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from plain_tensors(inner)


def storages(value: object, *, meta: bool = False) -> Iterator[UntypedStorage]:
    """Yield the storages of `value`, one per tensor, without tensors that have no memory.

    With `meta`, storages on torch's meta device are included, as memory of a dry run."""
    if isinstance(value, UntypedStorage):
        yield value
        return
    for tensor in plain_tensors(value):
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            continue  # a wrapper without its own storage
        if meta or storage.device.type != "meta":  # meta and fake tensors have only a shape
            yield storage


def alive(*, meta: bool = False) -> list[UntypedStorage]:
    """Return the storages of all tensors alive in this process, including those kept only by
    autograd's graph; `meta` as in `storages`.

    It walks the garbage collector's list (about 40 ms per 100,000 Python objects), then the graph
    of every tensor found. It misses tensors that only C++ code holds.
    """
    gc.collect()  # unreachable cycles are not alive, and must not be freed mid-region
    by_pointer: dict[int, UntypedStorage] = {}
    nodes = []
    # Exact types, because isinstance would query proxies, which may have side effects.
    tensor_types, storage_types = _with_subclasses(Tensor), _with_subclasses(UntypedStorage)
    wanted = tensor_types | storage_types
    for candidate in [entry for entry in gc.get_objects() if type(entry) in wanted]:
        if type(candidate) in storage_types:
            if meta or candidate.device.type != "meta":
                by_pointer[candidate._cdata] = candidate
            continue
        members = [candidate]
        if candidate.is_leaf:
            if candidate.requires_grad and candidate.grad is not None:
                members.append(candidate.grad)
        elif candidate.grad_fn is not None:
            nodes.append(candidate.grad_fn)
        by_pointer.update((storage._cdata, storage) for storage in storages(members, meta=meta))
    by_pointer.update((storage._cdata, storage) for storage in _saved_by_graph(nodes, meta))
    return list(by_pointer.values())


def _with_subclasses(kind: type) -> set[type]:
    kinds, waiting = set(), [kind]
    while waiting:
        known = waiting.pop()
        if known not in kinds:
            kinds.add(known)
            waiting.extend(type.__subclasses__(known))
    return kinds


def _saved_by_graph(nodes: list, meta: bool) -> Iterator[UntypedStorage]:
    """Yield tensors saved by backward nodes, read from raw slots, as unpacking could recompute."""
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes.extend(parent for parent, _ in node.next_functions)
        for name in dir(node):
            if not name.startswith("_raw_saved_"):
                continue
            try:
                slots = getattr(node, name)
                for slot in slots if isinstance(slots, (list, tuple)) else (slots,):
                    yield from storages(slot.data, meta=meta)
            except (RuntimeError, AttributeError):
                continue  # already released, or nothing was saved here
