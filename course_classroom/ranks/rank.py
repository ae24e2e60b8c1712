"""One rank of a notebook: a standard IPython kernel with a seat.

`cluster.py` starts one process per rank, which communicates over private files, never over the
network, and always ends with the notebook's process. Lesson 00 introduces ranks.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import threading
import time
import warnings
from pathlib import Path

sys.modules["debugpy.server"] = None  # a rank has no debugger, which would take 20 MB
import ipykernel.debugger  # noqa: E402, F401  (it looks for debugpy when it is imported)

del sys.modules["debugpy.server"]  # so that a cell can import it
from ipykernel import ipkernel  # noqa: E402
from ipykernel.ipkernel import IPythonKernel  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402

from course_classroom.ranks import confine  # noqa: E402


class _NoModules:
    """`sys` without its list of modules."""

    modules: dict = {}

    def __getattr__(self, name: str):
        return getattr(sys, name)


class RankKernel(IPythonKernel):
    """A kernel that runs cells under its seat's referee and answers stack requests while stuck."""

    control_msg_types = [*IPythonKernel.control_msg_types, "stack_request"]
    seat = None

    def __init__(self, **kwargs):
        # ipykernel lists the files of all modules for its debugger. A rank has none, and reading
        # three thousand modules would copy 20 MB that it shares with its parent.
        ipkernel.sys = _NoModules()
        try:
            super().__init__(**kwargs)
        finally:
            ipkernel.sys = sys

    async def do_execute(self, code, silent, *args, **kwargs):
        cell = (self.get_parent().get("metadata") or {}).get("course")
        if cell is None:
            return await super().do_execute(code, silent, *args, **kwargs)
        with self.seat.at_work(code, cell) as referee:
            reply = await super().do_execute(code, silent, *args, **kwargs)
        self.seat.report(cell, reply, referee)
        return reply

    async def stack_request(self, socket, ident, parent):
        stack = self.seat.stack(threading.main_thread().ident) if self.seat else {}
        self.session.send(socket, "stack_reply", stack, parent, ident=ident)


class RankApp(IPKernelApp):
    """The kernel's program without its own messages, because a rank's last output matters."""

    def log_connection_info(self) -> None:
        """Omit ipykernel's banner for manual connections, which would appear in a rank's output."""

    def write_connection_file(self, **kwargs: object) -> None:
        """Do nothing: the notebook's process has written the file, and removes it once the kernel
        answers, possibly before ipykernel would read it again or write the key."""


def sit_down(run_dir: str, rank: int, world: int) -> None:
    """Create the seat; it is the first request of the notebook's process."""
    from IPython import get_ipython

    from course_classroom.ranks.seat import Seat

    shell = get_ipython()
    shell.kernel.seat = shell.user_ns["__seat__"] = Seat(shell, rank, world, Path(run_dir))
    # Objects made by imports stay. The meter's search for live objects then takes milliseconds,
    # because it visits only objects of cells, not torch's half a million.
    gc.freeze()


def end_with_parent(run_dir: str, parent: int) -> None:
    """Exit when the parent ends, even if this rank waits inside a collective."""
    while os.getppid() == parent:
        time.sleep(0.3)
    shutil.rmtree(run_dir, ignore_errors=True)
    os._exit(1)


def forked(number: int, arguments: list[str]) -> None:
    """Become a rank in a child of the prepared process, which is its parent."""
    with contextlib.suppress(OSError):  # the name that `top` and `ps -o comm` show
        Path("/proc/self/comm").write_text(f"course-rank-{number}")
    confine.from_environment()
    run(os.getppid(), arguments)


def main() -> None:
    # torch loads while the kernel starts, because each takes nearly a second.
    confine.from_environment()
    threading.Thread(target=__import__, args=("course_lib.ranks",), daemon=True).start()
    run(int(os.environ["COURSE_PARENT"]), sys.argv[1:])


def run(parent: int, arguments: list[str]) -> None:
    """Serve as a kernel until the notebook ends."""
    run_dir = os.environ["COURSE_RUN_DIR"]
    warnings.filterwarnings("ignore", message="To exit: use")
    threading.Thread(target=end_with_parent, args=(run_dir, parent), daemon=True).start()
    RankApp.launch_instance(argv=arguments, kernel_class=RankKernel)


if __name__ == "__main__":
    main()
