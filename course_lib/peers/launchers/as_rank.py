"""What a launcher starts in this package: one rank, which runs the program it was meant for.

Its output goes to files of its own, by rank and process, since two processes may both take
themselves for rank 0. It ends when its time is over, whoever else has ended: no launcher leaves a
rank behind for longer. Standard library alone. Lesson 13.
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
STARTER = "COURSE_LAUNCH_STARTER"  # the process that has called the launcher
RANK = ("RANK", "SLURM_PROCID")


def main() -> None:
    """Take over output and errors, set the bound, run the program as `__main__`."""
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
    # Both in C, so that a process which waits inside a library answers: where it is, and its end.
    faulthandler.register(signal.SIGUSR1, file=err, all_threads=False)
    faulthandler.dump_traceback_later(float(os.environ[SECONDS]), exit=True, file=err)
    program = os.environ[PROGRAM]
    sys.argv[0] = program
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
