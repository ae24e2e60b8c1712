"""What torch.compile leaves as it is: steps that talk to other ranks.

A compiled graph ends before such a step and another begins after it, so that every rank sends the
same messages in the same order, compiled or not. After lesson 01.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

F = TypeVar("F", bound=Callable)
REASON = (
    "it exchanges messages with other ranks, and a graph of torch.compile ends there; that takes "
    "torch.compile(model), without fullgraph=True"
)


def uncompiled(function: F) -> F:
    """The function itself, marked so that torch.compile calls it and does not look inside.

    torch.compiler.disable marks alike; it would load the compiler, seconds, for all who do not
    compile, and a wrapper around every call.
    """
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = REASON
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP  # this frame, and those that are called from it
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function
