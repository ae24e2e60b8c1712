"""Faults for the ranks of a program under test; Python runs this file when a process starts.

TRAIN_FAULT="kill:8:1": rank 1 kills itself at its 8th step, "save:2:0": rank 0 in its 2nd save,
"slow:0.2:": each step of every rank takes so long more, "late:3:1": rank 1 sleeps in its 3rd,
"raise:2:1": rank 1 raises in its 2nd, "start::1": rank 1 sleeps while it is being started.
Only tests put this folder on a path.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import signal
import sys
import time


class _After(importlib.abc.MetaPathFinder):
    """Change a module when it has been imported."""

    def __init__(self, name, change):
        self.name, self.change = name, change

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_change(module):
            run(module)
            self.change(module)

        spec.loader.exec_module = run_and_change
        return spec


def _at(function, number, fault):
    """The function, but that its call of that number, on the rank in question, has the fault."""
    calls = iter(range(1, 1 << 60))

    def wrapped(*args, **options):
        mine = rank in ("", os.environ.get("RANK", "0"))  # a forked rank is told it after imports
        if mine and number in (None, next(calls)):
            fault()
        return function(*args, **options)

    return wrapped


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def _raise():
    raise LookupError("a fault")


def _within(module, name):
    """Where a dotted name of a module is kept: the object and the attribute."""
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    return module, last


kind, number, rank = (os.environ.get("TRAIN_FAULT", "") + "::").split(":")[:3]
PROGRAM, STOP = "course_lib.train.program", "course_lib.train.stop"
FAULTS = {
    "save": ("course_lib.checkpoint.saving", "write_own", lambda: (int(number), _kill)),
    "kill": (PROGRAM, "one_step", lambda: (int(number), _kill)),
    "late": (PROGRAM, "one_step", lambda: (int(number), lambda: time.sleep(600))),
    "slow": (PROGRAM, "one_step", lambda: (None, lambda: time.sleep(float(number)))),
    "raise": (PROGRAM, "one_step", lambda: (int(number), _raise)),
    "start": (STOP, "Stop.__init__", lambda: (None, lambda: time.sleep(600))),
}
if kind in FAULTS:
    module, name, what = FAULTS[kind]

    def change(made):
        place, last = _within(made, name)
        setattr(place, last, _at(getattr(place, last), *what()))

    sys.meta_path.insert(0, _After(module, change))
