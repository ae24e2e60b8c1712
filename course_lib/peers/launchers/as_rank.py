"""The process that a launcher starts in this package, one for each rank, to run the real program.

Its output goes to separate files named by rank and process, since two processes may both believe
that they are rank 0. It ends at its time limit, even if others are still running, so no launcher
leaves a rank behind. Standard library only. Lesson 13.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import runpy
import signal
import sys
from pathlib import Path

FOLDER, PROGRAM, SECONDS = "COURSE_LAUNCH_FOLDER", "COURSE_LAUNCH_PROGRAM", "COURSE_LAUNCH_SECONDS"
STARTER = "COURSE_LAUNCH_STARTER"  # the process that called the launcher
RANK = ("RANK", "SLURM_PROCID")


def main() -> None:
    """Redirect output and errors, set the time limit, and run the program as `__main__`."""
    rank = int(next((os.environ[name] for name in RANK if name in os.environ), 0))
    stem = Path(os.environ[FOLDER]) / f"rank-{rank:04}-{os.getpid()}"
    out, err, alive = (
        os.open(stem.with_suffix(end), os.O_CREAT | os.O_RDWR, 0o600)
        for end in (".out", ".err", ".alive")
    )
    fcntl.flock(alive, fcntl.LOCK_EX)  # held as long as this process lives
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(out, 1)
    os.dup2(err, 2)
    # Both work in C, so a process that waits inside a library still responds to them.
    faulthandler.register(signal.SIGUSR1, file=err, all_threads=False)
    faulthandler.dump_traceback_later(float(os.environ[SECONDS]), exit=True, file=err)
    program = os.environ[PROGRAM]
    sys.argv[0] = program
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
