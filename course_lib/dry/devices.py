"""A tensor that is left on another device, found by the line that made it.

On a machine without GPUs a forgotten `device=` is right by accident, and wrong on every other one.
Among shapes on meta it is a stranger: most operations refuse it, `copy_` takes it without a word.
Here each is refused by name. Lesson 15.
"""

from __future__ import annotations

import os
import sys

from torch import Tensor

from course_lib.dispatch import LightMode
from course_lib.memory.storages import plain_tensors

_MADE_AT = "_course_lib_made_at"  # kept on the storage itself
LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
NOT_MAKERS = (os.path.abspath(__file__), f"{os.sep}torch{os.sep}")


class Astray(RuntimeError):
    """A tensor on the CPU meets one on meta."""


class OneDevice(LightMode):
    """Within it, no operation takes a tensor with dims on the CPU beside one on meta. (One without
    dims goes beside any device, in torch too.)"""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = list(plain_tensors((args, kwargs or {})))
        if any(x.is_meta for x in tensors):
            for x in tensors:
                if not x.is_meta and x.dim():
                    raise Astray(_of(x, func._schema.name))
        result = func(*args, **(kwargs or {}))
        for x in plain_tensors(result):
            if not x.is_meta and not hasattr(x.untyped_storage(), _MADE_AT):
                setattr(x.untyped_storage(), _MADE_AT, _line())
        return result


def _of(x: Tensor, operation: str) -> str:
    made = getattr(x.untyped_storage(), _MADE_AT, "before this, out of sight")
    return (
        f"{operation} takes a tensor of shape {tuple(x.shape)} on the {x.device.type} beside one "
        f"on meta. It was made {made}: pass it the device of what it will meet"
    )


def _line() -> str:
    """The innermost line that is not torch's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(piece in file for piece in NOT_MAKERS):
            name = (
                file.removeprefix(LIBRARY) if file.startswith(LIBRARY) else os.path.basename(file)
            )
            return f"at {name}:{frame.f_lineno}"
        frame = frame.f_back
    return "out of sight"
