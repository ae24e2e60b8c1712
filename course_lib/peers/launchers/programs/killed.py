"""The last rank is killed as the system does it where the host has no memory left; or its launcher.

It reports its variables first; the other ranks wait for it, as in a collective. Lesson 13.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from course_lib.peers.launchers.programs.variables import report

PATIENCE = 30.0  # seconds, where a launcher does not end the others


def end(whom: str) -> None:
    """SIGKILL from the last rank, once all have reported: no handler and no traceback."""
    world, folder = int(os.environ.get("WORLD_SIZE", 1)), Path(os.environ["COURSE_LAUNCH_FOLDER"])
    deadline = time.monotonic() + PATIENCE
    if int(os.environ.get("RANK", 0)) == world - 1:
        while (
            sum(bool(file.stat().st_size) for file in folder.glob("rank-*.out")) < world
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        parent = os.getppid()
        if whom == "launcher" and parent == int(os.environ["COURSE_LAUNCH_STARTER"]):
            raise RuntimeError("this rank has no launcher")  # but the one that called it
        os.kill(parent if whom == "launcher" else os.getpid(), signal.SIGKILL)
    time.sleep(PATIENCE)


if __name__ == "__main__":
    report()
    end("launcher" if "launcher" in sys.argv else "rank")
