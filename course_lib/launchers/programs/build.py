"""A rank asks DeepSpeed for its compiled Adam, which is built at its first use.

With a number of seconds it bounds its own wait for a lock, and then prints how busy it was and
where it stood. Lesson 13.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time


def waits() -> bool:
    """Whether the main thread stands in torch's wait for another build."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None:
        if frame.f_code.co_filename.endswith("file_baton.py"):
            return True
        frame = frame.f_back
    return False


def bound(seconds: float) -> None:
    """End this process once it has waited so long, with the share of a processor that it used."""

    def end() -> None:
        while not waits():
            time.sleep(0.02)
        before = time.process_time()
        time.sleep(seconds)
        share = (time.process_time() - before) / seconds
        used = "under 5 %" if share < 0.05 else f"{share:.0%}"
        print(f"after {seconds:g} s: {used} of a processor used", flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def build(seconds: float | None) -> None:
    """Load the extension, and say so."""
    from deepspeed.ops.op_builder import CPUAdamBuilder

    if seconds is not None:
        bound(seconds)
    module = CPUAdamBuilder().load()
    print(f"{module.__name__} is loaded", flush=True)


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv[1:] if word[0].isdigit()]
    build(numbers[0] if numbers else None)
