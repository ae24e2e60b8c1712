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


class Watch:
    """Notes troubles until they are asked for; only calls made by a cell itself count."""

    def __init__(self) -> None:
        self.troubles: list[str] = []
        self.known_threads = set(threading.enumerate())
        self.programs: list[subprocess.Popen] = []

    def install(self) -> None:
        self._hook_threads()
        self._hook_functions()
        watch, popen = self, subprocess.Popen

        class WatchedPopen(popen):
            def __init__(self, *args, **kwargs):
                self.of_a_cell = called_by_a_cell()
                super().__init__(*args, **kwargs)
                if self.of_a_cell:
                    watch.programs.append(self)

            def send_signal(self, signal):
                self.of_a_cell = False  # the cell ends it: how it ends is then no surprise
                super().send_signal(signal)

        subprocess.Popen = WatchedPopen

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

    def _hook_functions(self) -> None:
        run, call, getoutput, system = (
            *(subprocess.run, subprocess.call, subprocess.getoutput),
            os.system,
        )

        def watched_run(*args, **kwargs):
            ended = run(*args, **kwargs)
            if ended.returncode and called_by_a_cell():
                self._note_program(ended.args, ended.returncode)
            return ended

        def watched_call(*args, **kwargs):
            code = call(*args, **kwargs)
            if code and called_by_a_cell():
                self._note_program(args[0] if args else kwargs.get("args"), code)
            return code

        def watched_getoutput(command, **kwargs):
            if not called_by_a_cell():
                return getoutput(command, **kwargs)
            code, text = subprocess.getstatusoutput(command, **kwargs)
            if code:
                self._note_program(command, code)
            return text

        def watched_system(command):
            status = system(command)
            if status and called_by_a_cell():
                self._note_program(command, os.waitstatus_to_exitcode(status))
            return status

        subprocess.run, subprocess.call = watched_run, watched_call
        subprocess.getoutput, os.system = watched_getoutput, watched_system

    def _note_program(self, args: object, code: int) -> None:
        words = args if isinstance(args, (str, bytes)) else [str(word) for word in args]
        self.troubles.append(f"the program {words!r} ended with {code} and nothing was raised")


def called_by_a_cell() -> bool:
    """Whether the function that asks was called from a cell, not from inside a library."""
    return sys._getframe(2).f_globals.get("__name__") == "__main__"
