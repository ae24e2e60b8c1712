"""What a notebook's kernel notes while it is tested: threads and programs that failed unseen.

nbval sees the exceptions of the cell itself. An exception in a thread, and a program that a cell
starts without asking how it ended, leave the cell green (trap T36). Sent to the kernel as source.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import traceback


class Watch:
    """Notes troubles until they are asked for; only calls made by a cell itself count."""

    def __init__(self) -> None:
        self.troubles: list[str] = []
        self.known_threads = set(threading.enumerate())
        self.programs: list[subprocess.Popen] = []

    def install(self) -> None:
        self._hook_threads()
        watch, popen, system = self, subprocess.Popen, os.system

        class WatchedPopen(popen):  # `run`, `call` and `getoutput` start their programs by it, too
            def __init__(self, *args, **kwargs):
                self.of_a_cell = called_by_a_cell()
                super().__init__(*args, **kwargs)
                if self.of_a_cell:
                    watch.programs.append(self)

            def send_signal(self, signal):
                self.of_a_cell = False  # the cell ends it: how it ends is then no surprise
                super().send_signal(signal)

            def __exit__(self, kind, *rest):
                # With check=True the cell sees the error, which `getoutput` keeps to itself.
                above = {frame.f_code.co_name for frame, _ in traceback.walk_stack(None)}
                self.of_a_cell &= kind is None or "getstatusoutput" in above
                super().__exit__(kind, *rest)

        def watched_system(command):
            status = system(command)
            if status and called_by_a_cell():
                self._note_program(command, os.waitstatus_to_exitcode(status))
            return status

        subprocess.Popen, os.system = WatchedPopen, watched_system

    def report(self) -> str:
        """The troubles since the last report, as JSON. Threads that end soon are waited for."""
        limit = time.monotonic() + 2
        for thread in set(threading.enumerate()) - self.known_threads:
            if not thread.daemon:
                thread.join(max(0.0, limit - time.monotonic()))
        running = []
        for program in self.programs:
            code = program.poll()
            if code is None:
                running.append(program)
            elif code and program.of_a_cell:
                self._note_program(program.args, code)
        self.programs = running
        told, self.troubles = json.dumps(self.troubles), []
        return told

    def _hook_threads(self) -> None:
        before = threading.excepthook

        def excepthook(args):
            if args.exc_type is not SystemExit:
                name = args.thread.name if args.thread else "a thread"
                said = f"{args.exc_type.__name__}: {args.exc_value}"
                self.troubles.append(f"{name} ended with an exception that no cell sees: {said}")
            before(args)

        threading.excepthook = excepthook

    def _note_program(self, args: object, code: int) -> None:
        words = args if isinstance(args, (str, bytes)) else [str(word) for word in args]
        self.troubles.append(f"the program {words!r} ended with {code} and nothing was raised")


def called_by_a_cell() -> bool:
    """Whether the function that asks was called from a cell, not from inside a library."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "subprocess":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "__main__"
