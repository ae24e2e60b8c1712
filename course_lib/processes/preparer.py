"""The prepared process: it imports common modules once, then forks a child for each request.

It has one thread, runs nothing large, and ends with the process that started it. It writes a
child's exit code to the pipe of the child's request, because only the parent learns it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import warnings

from course_lib.processes import channel
from course_lib.processes.child import become
from course_lib.processes.leftovers import end_all
from course_lib.processes.safe import why_unsafe

SETTLE = 10.0  # seconds for a child's setup, which normally takes milliseconds
LOOK = 0.5  # seconds between two checks that the parent still lives


class Preparing:
    """The children of a prepared process, each with the pipe for its exit code."""

    def __init__(self, end: socket.socket, parent: int):
        self.end, self.parent = end, parent
        self.children: dict[int, tuple[int, str]] = {}  # process → (pipe, its run's folder)
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> None:
        """Answer requests until the other end is gone."""
        while os.getppid() == self.parent:
            ready, _, _ = select.select([self.end, self._woken], [], [], LOOK)
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            self.reap()
            if self.end in ready:
                try:
                    wanted, descriptors = channel.receive(self.end)
                except channel.Closed:
                    break
                try:
                    self.answer(wanted, descriptors)
                finally:
                    for number in descriptors:
                        with contextlib.suppress(OSError):
                            os.close(number)

    def answer(self, wanted: dict, descriptors: list[int]) -> None:
        unsafe = why_unsafe()
        if unsafe:
            channel.send(self.end, {"unsafe": unsafe})
            return
        status, *own = descriptors
        settling, settled = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError as error:
            os.close(settling)
            os.close(settled)
            channel.send(self.end, {"refused": error.strerror, "errno": error.errno})
            return
        if pid == 0:
            become(wanted, [*own, settled])
        os.close(settled)
        # The starter may set limits for the child, so these must come after the child's own setup.
        select.select([settling], [], [], SETTLE)
        os.close(settling)
        kept = os.dup(status)
        self.children[pid] = (kept, wanted["env"].get("COURSE_RUN_DIR", ""))
        channel.send(self.end, {"pid": pid})

    def reap(self) -> None:
        """Report the exit codes of children that have ended."""
        while self.children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            pipe, _ = self.children.pop(pid, (-1, ""))
            if pipe >= 0:
                with contextlib.suppress(OSError):  # its starter may be gone
                    os.write(pipe, b"%d\n" % os.waitstatus_to_exitcode(status))
                os.close(pipe)

    def end_children(self) -> None:
        """End all children and grandchildren and delete their folders: the starter is gone."""
        folders = [folder for _, folder in self.children.values() if folder]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        end_all(list(self.children), folders, remove=True)


def main() -> None:
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    parent, modules = int(sys.argv[2]), sys.argv[3:]
    gc.disable()  # a collection would touch imported objects, and each child would copy those pages
    warnings.simplefilter("ignore")
    try:
        for name in modules:
            importlib.import_module(name)
    except BaseException as error:
        with contextlib.suppress(channel.Closed):
            why = f"the prepared process failed to import ({type(error).__name__}: {error})"
            channel.send(end, {"unsafe": why[:2000]})
        raise
    warnings.resetwarnings()
    warnings.filters[:] = _FILTERS
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.enable()
    gc.freeze()
    preparing = Preparing(end, parent)
    try:
        channel.send(end, {"ready": os.getpid(), "unsafe": why_unsafe()})
        preparing.serve()
    except channel.Closed:
        pass
    finally:
        preparing.end_children()
    os._exit(0)


_FILTERS = list(warnings.filters)

if __name__ == "__main__":
    main()
