"""When a backend's threads have let go: a copy lives a moment longer than the collective that made
it.

gloo's thread says that the work is done, wakes the caller, and drops the work with its tensors
after that. On a busy machine the caller is faster once in some hundred calls, and would count a
buffer that is as good as gone. Lesson 01 meets it inside the meter.
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
        quiet = 0 if at_work() else quiet + 1


def at_work(tasks: Path = TASKS) -> list[int]:
    """The threads of a backend that run, or wait for a processor; [] where none can be seen."""
    found = []
    for stat in tasks.glob("*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # the thread ended between the two calls
        name, _, rest = text.partition("(")[2].rpartition(")")
        if name.startswith(BACKENDS) and rest.split()[0] in "RD":
            found.append(int(stat.parent.name))
    return sorted(found)
