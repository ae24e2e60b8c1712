"""What a message sends stays in memory as long as its handle does, as gloo and NCCL keep it.

Torch's fake group lets go of it at once, and a peak would lack what travels under a product.
Lesson 15.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.dispatch import OPERATIONS, LightMode
from course_lib.memory.storages import plain_tensors


class UnderWay(LightMode):
    """Keeps the tensors of every collective for whoever keeps its handle."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors: WeakKeyDictionary[dist.Work, list[Tensor]] = WeakKeyDictionary()
        self._newest: dist.Work | None = None  # until the next operation: by then its caller has it

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._newest = None
        result = func(*args, **(kwargs or {}))
        if func._schema.name in OPERATIONS:
            last = result[-1] if isinstance(result, (tuple, list)) and result else result
            if isinstance(last, torch.ScriptObject):
                self._newest = dist.Work.unbox(last)
                self._tensors[self._newest] = list(plain_tensors((args, kwargs or {})))
        return result
