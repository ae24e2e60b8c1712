"""One rank of a notebook: a stock IPython kernel that sits in a seat.

Started by `cluster.py`, one process a rank, talking over private files and never over the network.
It ends with the notebook's process, however that one ended. Lesson 00 meets it.
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

sys.modules["debugpy.server"] = None  # a rank has no debugger, which would cost it 20 MB
import ipykernel.debugger  # noqa: E402, F401  (it looks for debugpy when it is imported)

del sys.modules["debugpy.server"]  # a cell may import it
from ipykernel import ipkernel  # noqa: E402
from ipykernel.ipkernel import IPythonKernel  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402

from course_classroom.ranks import confine  # noqa: E402


class _NoModules:
    """`sys`, but for its list of modules."""

    modules: dict = {}

    def __getattr__(self, name: str):
        return getattr(sys, name)


class RankKernel(IPythonKernel):
    """Runs a cell under its seat's referee; answers on the control channel while it is stuck."""

    control_msg_types = [*IPythonKernel.control_msg_types, "stack_request"]
    seat = None

    def __init__(self, **kwargs):
        # ipykernel lists the files of all modules for its debugger. A rank has none, and looking at
        # three thousand modules would copy 20 MB that it shares with what it was forked from.
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
    """The kernel's program, which keeps quiet: what a rank printed last is told when it fails."""

    def log_connection_info(self) -> None:
        """ipykernel's banner is for who connects by hand, and would stand in that story's place."""

    def write_connection_file(self, **kwargs: object) -> None:
        """The notebook's process has written it, and takes it away once the kernel is heard, which
        may be before ipykernel comes back to it: to look into it, or to put the key there again."""


def sit_down(run_dir: str, rank: int, world: int) -> None:
    """Take the seat; the notebook's process asks for this first."""
    from IPython import get_ipython

    from course_classroom.ranks.seat import Seat

    shell = get_ipython()
    shell.kernel.seat = shell.user_ns["__seat__"] = Seat(shell, rank, world, Path(run_dir))
    # What the imports have made stays. The meter's look for what is alive then takes milliseconds:
    # it walks over what cells have made since, and not over torch's half a million objects.
    gc.freeze()


def end_with_parent(run_dir: str, parent: int) -> None:
    """Poll for the parent's end: it frees this rank even where it waits inside a collective."""
    while os.getppid() == parent:
        time.sleep(0.3)
    shutil.rmtree(run_dir, ignore_errors=True)
    os._exit(1)


def forked(number: int, arguments: list[str]) -> None:
    """Be a rank in a child of the prepared process, which is its parent."""
    with contextlib.suppress(OSError):  # the name that `top` and `ps -o comm` show
        Path("/proc/self/comm").write_text(f"course-rank-{number}")
    confine.from_environment()
    run(os.getppid(), arguments)


def main() -> None:
    # torch loads while the kernel sets itself up: each takes the better part of a second.
    confine.from_environment()
    threading.Thread(target=__import__, args=("course_lib.ranks",), daemon=True).start()
    run(int(os.environ["COURSE_PARENT"]), sys.argv[1:])


def run(parent: int, arguments: list[str]) -> None:
    """Serve as a kernel until the notebook's end."""
    run_dir = os.environ["COURSE_RUN_DIR"]
    warnings.filterwarnings("ignore", message="To exit: use")
    threading.Thread(target=end_with_parent, args=(run_dir, parent), daemon=True).start()
    RankApp.launch_instance(argv=arguments, kernel_class=RankKernel)


if __name__ == "__main__":
    main()
