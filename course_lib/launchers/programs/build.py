"""A rank asks DeepSpeed for its compiled Adam, which is built at its first use.

With a number of seconds it bounds its own wait: what it then prints says how busy it was, and where
it stood. Lesson 13.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time


def bound(seconds: float) -> None:
    """End this process after so long, with the share of a processor that it used meanwhile."""
    before = time.process_time()

    def end() -> None:
        share = (time.process_time() - before) / seconds
        used = "under 5 %" if share < 0.05 else f"{share:.0%}"
        print(f"after {seconds:g} s: {used} of a processor used", flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


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
