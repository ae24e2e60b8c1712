"""The reasons why this process must not be forked: a second thread, or an initialised GPU.

A child has only the thread that forked it. A lock held by a different thread would stay locked
forever, and CUDA's state would be invalid. Threads are counted by the kernel, which also knows
those that Python does not know.
"""

from __future__ import annotations

import os
import sys


def why_unsafe() -> str:
    """Explain why a fork is not safe now; empty if it is safe."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"the prepared process has {threads} threads"
    device = _device_touched()
    return f"the prepared process has touched a GPU ({device})" if device else ""


def _device_touched() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "torch.cuda is initialised"
    for number in os.listdir("/proc/self/fd"):
        try:
            place = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        # NVML leaves nvidiactl open and is safe; a CUDA context opens the cards and nvidia-uvm.
        if place.startswith("/dev/nvidia") and place != "/dev/nvidiactl":
            return place
    return ""
