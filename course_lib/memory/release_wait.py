"""A wait until a backend's threads have released the memory of a collective.

gloo's thread reports that the work is done, wakes the caller, and only then frees the work with its
tensors. A faster caller would count it as in use. The meter of lesson 01 uses this wait.
"""

from __future__ import annotations

import time
from pathlib import Path

# torch's name for the threads that run gloo's collectives; the system keeps 15 letters of a name.
BACKENDS = ("pt_gloo",)
TASKS = Path("/proc/self/task")
PAUSE, PATIENCE = 0.002, 0.5  # seconds between two checks, and for all of them


def wait_until_settled() -> None:
    """Wait until all threads of a backend are idle, but at most half a second.

    Two consecutive checks must find them asleep. A thread that waits for the GIL sleeps too, but
    gets it during the pause. On systems that list no threads, this only pauses once.
    """
    end, quiet = time.monotonic() + PATIENCE, 0
    while quiet < 2 and time.monotonic() < end:
        time.sleep(PAUSE)
        quiet = 0 if any(map(_at_work, TASKS.glob("*/stat"))) else quiet + 1


def _at_work(stat: Path) -> bool:
    """Return True if a thread belongs to a backend and runs or waits for a processor."""
    try:
        name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
    except OSError:
        return False  # the thread ended between the two calls
    return name.startswith(BACKENDS) and rest.split()[0] in "RD"
