"""A meter of whole weights, for all functions of lesson 11."""

from __future__ import annotations

import time

from course_lib.memory.lifetimes import StorageWatch

PATIENCE = 20  # times 10 ms


class Meter:
    """Counts what was made under `watch`, is alive, and has `least` bytes or more."""

    def __init__(self, watch: StorageWatch, least: int):
        self.watch, self.least, self.patience = watch, least, PATIENCE

    def now(self, most: int) -> int:
        """A backend's thread may hold its copy of a message a moment longer: look again."""
        for _ in range(self.patience):
            found = sum(one.nbytes() >= self.least for one in self.watch.made_and_alive())
            if found <= most:
                return found
            time.sleep(0.01)
        self.patience = 1  # what has stayed once is no thread's copy
        return found
