"""A meter of full weights, for all functions of lesson 11."""

from __future__ import annotations

import time

from course_lib.memory.lifetimes import StorageWatch

PATIENCE = 20  # times 10 ms


class Meter:
    """A counter of live tensors made under `watch` with at least `least` bytes."""

    def __init__(self, watch: StorageWatch, least: int):
        self.watch, self.least, self.patience = watch, least, PATIENCE

    def now(self, most: int) -> int:
        """Count now; look again if a backend's thread may still hold a copy of a message."""
        for _ in range(self.patience):
            found = sum(one.nbytes() >= self.least for one in self.watch.made_and_alive())
            if found <= most:
                return found
            time.sleep(0.01)
        self.patience = 1  # memory that has stayed once is not a thread's copy
        return found
