"""A program whose last rank, or whose launcher, is killed as if the host had no memory left.

Each rank first reports its variables; the other ranks then wait, as in a collective. Lesson 13.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from course_lib.peers.launchers.programs.variables import report

PATIENCE = 30.0  # seconds, if a launcher does not end the other ranks


def end(whom: str) -> None:
    """Send SIGKILL from the last rank after all have reported, so that no traceback appears."""
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
            raise RuntimeError("this rank has no launcher")  # except its caller
        os.kill(parent if whom == "launcher" else os.getpid(), signal.SIGKILL)
    time.sleep(PATIENCE)


if __name__ == "__main__":
    report()
    end("launcher" if "launcher" in sys.argv else "rank")
