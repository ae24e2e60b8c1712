"""What memory an answer keeps once its caller has let go: of its inputs, and of its own making.

A tensor is found wherever it is kept. For `gather_from` and lesson 04's `fuse_gate_up`.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

LITTLE = 32  # bytes: some lengths or places, and no values
PATIENCE = 1.0  # seconds: the backend's threads may let go of a message a little later


def call(function: Callable, given: Iterable[Tensor], *more: object) -> int:
    """The bytes that `function(*given, *more)` keeps besides its result; where the result has a
    history, also those of the result that the history alone holds.

    `given` should make its tensors as it is read: what the caller holds is not counted.
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
    if graphs:  # the result goes, and what leads back from it stays
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
    except Exception:  # a subclass of a learner's that answers nothing
        return False


def _alive() -> dict[int, int]:
    """The memory under each tensor that lives: where it is, and how much of it is used."""
    found: dict[int, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thing in gc.get_objects():
            if _has_memory(thing) and thing.device.type == "cpu":
                found[thing.untyped_storage()._cdata] = thing.untyped_storage().nbytes()
    return found
