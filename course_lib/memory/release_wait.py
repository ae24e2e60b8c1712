"""When a backend's threads have let go of what a collective has made.

gloo's thread says that the work is done, wakes the caller, and only then drops the work with its
tensors: a faster caller would count a buffer that is as good as gone. Lesson 01 meets it inside the
meter.
"""

from __future__ import annotations

import time
from pathlib import Path

# What torch calls the threads that run gloo's collectives: the system keeps 15 letters of a name.
BACKENDS = ("pt_gloo",)
TASKS = Path("/proc/self/task")
PAUSE, PATIENCE = 0.002, 0.5  # seconds: between two looks, and for all of them


def wait_until_settled() -> None:
    """Return when no thread of a backend is at work, or after half a second.

    Two looks in a row have to find them asleep: one that waits for the GIL sleeps as well, and
    gets it in the pause. Where the system shows no threads, the first pause is all there is.
    """
    end, quiet = time.monotonic() + PATIENCE, 0
    while quiet < 2 and time.monotonic() < end:
        time.sleep(PAUSE)
        quiet = 0 if any(map(_at_work, TASKS.glob("*/stat"))) else quiet + 1


def _at_work(stat: Path) -> bool:
    """Whether a thread is a backend's, and runs or waits for a processor."""
    try:
        name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
    except OSError:
        return False  # the thread ended between the two calls
    return name.startswith(BACKENDS) and rest.split()[0] in "RD"
