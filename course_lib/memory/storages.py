"""Memory is made of storages: tensors, views and tied weights are only names for them.

Finds the storages behind any object, and those that are alive anywhere in the process.
Lesson 01 meets it as "what a rank holds"; lesson 09 counts the sixteen bytes per parameter with it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, UntypedStorage


def plain_tensors(value: object) -> Iterator[Tensor]:
    """Every ordinary tensor inside `value`: lists, dicts, DTensors and other wrappers opened up."""
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
    """The storages behind `value`, once for each tensor; tensors without memory are skipped.

    `meta`: those on torch's meta device are told as well, which stand for memory in a dry run."""
    if isinstance(value, UntypedStorage):
        yield value
        return
    for tensor in plain_tensors(value):
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            continue  # a wrapper without a storage of its own
        if meta or storage.device.type != "meta":  # meta and fake tensors: a shape, no memory
            yield storage


def alive(*, meta: bool = False) -> list[UntypedStorage]:
    """Storages of all tensors alive in this process, with those that only autograd's graph holds;
    `meta` as in `storages`.

    A walk of the garbage collector's list (about 40 ms for each 100,000 Python objects), then of
    the graph behind every tensor met. A tensor that only C++ code holds is not found.
    """
    gc.collect()  # cycles that nobody can reach are not alive, and must not be freed mid-region
    by_pointer: dict[int, UntypedStorage] = {}
    nodes = []
    # Exact types: isinstance would ask proxies, and proxies answer with side effects.
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
    """What backward nodes keep. Reads the raw slots: unpacking would run recomputation hooks."""
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
