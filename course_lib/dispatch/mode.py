"""A dispatch mode, kept light: it sees every operation of torch below autograd, whoever issued it.

In forward and in backward, from Python and from C++. Lesson 01 opens the first one.
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
