"""What torch's CPU allocator reports while it is asked to: every block taken and given back.

Torch's profiler is the only witness of memory that lives and dies inside one operation, such as the
copy that gloo makes for a reduce-scatter. Lesson 01 uses it through the meter.
"""

from __future__ import annotations

import functools
import os
import sys

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

from course_lib.memory.blocks import Event


def profiler_is_free() -> bool:
    """Only one profiler can run in a process: a second one silently ends the first."""
    return torch.autograd.kineto_available() and not torch.autograd._profiler_enabled()


class AllocatorEvents:
    """Start and stop the recording; `stop` returns the events in order of time."""

    def __init__(self) -> None:
        _quiet_once()
        self._profiler = profile(use_kineto=True, profile_memory=True)
        self._profiler.__enter__()

    def stop(self) -> list[Event] | None:
        """None if somebody else's profiler ended this one in between."""
        if not torch.autograd._profiler_enabled():
            return None
        self._profiler.__exit__(None, None, None)
        events = []
        tree = self._profiler.kineto_results.experimental_event_tree()
        waiting = [(event, "torch") for event in reversed(tree)]
        while waiting:
            event, parent = waiting.pop()
            if event.tag == _EventType.Allocation:
                block = event.extra_fields
                if block.device.type == "cpu" and parent != "aten::from_file":
                    size, pointer = block.alloc_size, block.ptr
                    events.append(Event(event.start_time_ns, pointer, size, parent))
            else:
                name = event.name if event.tag == _EventType.TorchOp else parent
                waiting.extend((child, name) for child in reversed(event.children))
        events.sort(key=lambda event: event.moment)
        return events


@functools.cache
def _quiet_once() -> None:
    """Run the profiler once with its chatter off.

    Kineto prints "profiler_start" lines unless told otherwise before its first run, and torch warns
    (then after every thousandth) when memory from before the region is freed, which is what a
    training step does. Neither concerns the reader of a notebook.
    """
    chosen = os.environ.get("KINETO_LOG_LEVEL")
    old = torch.empty(16, device="cpu")
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        os.dup2(nowhere, 2)
        with profile(use_kineto=True, profile_memory=True):
            del old
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
        if chosen is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)
