"""Where torch is watched: its operations as they are dispatched, and Python's waits for a handle.

`LightMode` is the way in for the ledger, the memory meter and the referee of a notebook's cell: it
sees every operation below autograd, whoever issued it, in forward and in backward, from Python and
from C++. `operations.py` is the one table of torch's collectives; `waits.py` the one listener for
`Work.wait`. Lesson 01.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.ledger.torch_calls.operations import OPERATIONS, Operation, arguments, handle
from course_lib.ledger.torch_calls.waits import listening

__all__ = ["OPERATIONS", "LightMode", "Operation", "arguments", "handle", "listening"]


class LightMode(TorchDispatchMode):
    """A dispatch mode that does not bring torch's compiler along.

    Torch wraps modes so that the compiler skips them. That wrapper imports the compiler, a second
    and 75 MB, and keeps an operation's arguments alive in the traceback of an error.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
