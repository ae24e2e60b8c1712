"""The way in for everything that watches torch's operations go by: a dispatch mode, kept light.

The ledger, the memory meter and the referee of a notebook's cell are each one of these. A mode sees
every operation below autograd, in forward and in backward, whoever issued it. Lesson 01.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class LightMode(TorchDispatchMode):
    """A dispatch mode that does not bring torch's compiler along.

    Torch wraps modes so that the compiler skips them. That wrapper imports the compiler, a second
    and 75 MB, and keeps an operation's arguments alive in the traceback of an error.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
