"""Memory that an answer keeps after its caller has released the inputs and results.

Tensors are found wherever they are stored. `gather_from` and lesson 04's `fuse_gate_up` use this.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

LITTLE = 32  # bytes: some lengths or places, but no values
PATIENCE = 1.0  # seconds; the backend's threads may release a message a little later


def call(function: Callable, given: Iterable[Tensor], *more: object) -> int:
    """Return the bytes that `function(*given, *more)` keeps in addition to its result, including
    bytes of the result that only its autograd history holds.

    `given` should create its tensors on iteration, because the caller's tensors are not counted.
    """
    saved: list[int] = []

    def keep(one: Tensor) -> Tensor:
        saved.append(one.nbytes if one.nbytes > LITTLE else 0)
        return one

    before = set(_alive())
    tensors = list(given)
    inputs = [(StorageWeakRef(one.untyped_storage()), one.nbytes) for one in tensors]
    own = {one.untyped_storage()._cdata for one in tensors}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        out = function(*tensors, *more)
    tensors.clear()
    results = _tensors(out)
    known = {one.untyped_storage()._cdata for one in results} | own | before
    graphs = [one.grad_fn for one in results if one.grad_fn is not None]
    if graphs:  # the result is released, but its graph stays
        places = [one.untyped_storage() for one in results]
        inputs += [(StorageWeakRef(one), one.nbytes()) for one in places if one._cdata not in own]
        del out, results, places
    end = time.monotonic() + PATIENCE
    while True:
        gc.collect()
        held = sum(size for reference, size in inputs if not reference.expired())
        held += sum(n for place, n in _alive().items() if place not in known and n > LITTLE)
        if not held or time.monotonic() > end:
            return max(sum(saved), held)
        time.sleep(0.02)


def _tensors(out: object) -> list[Tensor]:
    found = out if isinstance(out, (list, tuple)) else [out]
    return [one for one in found if _has_memory(one)]


def _has_memory(thing: object) -> bool:
    try:
        return issubclass(type(thing), Tensor) and thing.layout == torch.strided
    except Exception:  # a learner's subclass that fails on access
        return False


def _alive() -> dict[int, int]:
    """Return the storages of all live CPU tensors: address -> bytes."""
    found: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thing in gc.get_objects():
            if _has_memory(thing) and thing.device.type == "cpu":
                found[thing.untyped_storage()._cdata] = thing.untyped_storage().nbytes()
    return found
