"""Hooks into torch: a mode that sees dispatched operations, and a listener for Python's waits.

The ledger, the memory meter and the referee of a notebook's cell all use `LightMode`. It sees every
operation below autograd, from any issuer, in the forward and backward pass, from Python and C++.
`operations.py` is the table of torch's collectives, and `waits.py` has the only listener for
`Work.wait`. Lesson 01.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.ledger.torch_calls.operations import OPERATIONS, Operation, arguments, handle
from course_lib.ledger.torch_calls.waits import listening

__all__ = ["OPERATIONS", "LightMode", "Operation", "arguments", "handle", "listening"]


class LightMode(TorchDispatchMode):
    """A dispatch mode that does not import torch's compiler.

    Torch wraps modes so that the compiler skips them. The wrapper imports the compiler, which costs
    a second and 75 MB, and keeps an operation's arguments alive in the traceback of an error.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
