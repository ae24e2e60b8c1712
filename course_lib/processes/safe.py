"""Say why this process must not be forked: a second thread, or a GPU that it has touched.

A child has only the thread that forked it: a lock that another one held stays locked for ever, and
CUDA's state is good for nothing in it. Read from the kernel, which knows of threads that Python
does not.
"""

from __future__ import annotations

import os
import sys


def why_unsafe() -> str:
    """Why a fork would not be safe now, in words; empty where it is."""
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
