"""What a launcher starts in this package: one rank, which runs the program it was meant for.

Its output goes to files of its own, by rank, and it ends when its time is over, whoever else has
ended: no launcher leaves a rank behind for longer. Standard library alone. Lesson 13.
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


def own_files(folder: Path) -> tuple[int, int, int]:
    """Descriptors for output, errors and this process's number, named by the rank that the
    launcher has said; two processes that both take themselves for rank 0 get files each."""
    rank = next((os.environ[name] for name in RANK if name in os.environ), "0")
    for copy in range(1000):
        stem = folder / f"rank-{int(rank):04}-{copy:03}"
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
            number = os.open(stem.with_suffix(".pid"), flags, 0o600)
        except FileExistsError:
            continue
        fcntl.flock(number, fcntl.LOCK_EX)  # held as long as this process lives
        os.write(number, str(os.getpid()).encode())
        out, err = (os.open(stem.with_suffix(end), flags, 0o600) for end in (".out", ".err"))
        return out, err, number
    raise RuntimeError(f"{folder} is full of ranks {rank}")


def main() -> None:
    """Take over output and errors, set the bound, run the program as `__main__`."""
    out, err, number = own_files(Path(os.environ[FOLDER]))
    os.set_inheritable(number, False)
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
