"""The setup that makes a forked process equivalent to a started one, and the call of its function.

The child gets its own session, signals, streams, folder, limits, random numbers and descriptors.
Settings that libraries read from the environment at import are applied by calls.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import resource
import signal
import sys
import traceback


def become(wanted: dict, descriptors: list[int]) -> None:
    """Run `wanted["target"]` in this fresh child, and never return.

    `descriptors` has one for output, one for errors, those passed to the target, and one that
    is closed as soon as the setup is complete.
    """
    code = 1
    try:
        os.setsid()
        _signals()
        output, errors, *given, settled = _only(descriptors)
        _streams(output, errors)
        _surroundings(wanted)
        _seed()
        os.close(settled)
        module, _, name = wanted["target"].partition(":")
        getattr(importlib.import_module(module), name)(*wanted["arguments"], *given)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            # Closed, or full: nothing can be reported any more.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)


def _signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in (signal.SIGKILL, signal.SIGSTOP):
            continue
        handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        if number in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", None)):
            handler = signal.SIG_IGN  # as Python itself does
        try:
            signal.signal(number, handler)
        except (OSError, ValueError):
            continue  # the C library reserves some signals
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _only(descriptors: list[int]) -> list[int]:
    """Close every other descriptor; return the kept ones, renumbered from 3 on, in order."""
    top = max([2, *descriptors]) + 1
    moved = []
    for number in descriptors:  # move them away first, so that none overwrites a different one
        moved.append(os.dup2(number, top + len(moved), inheritable=False))
    kept = [os.dup2(number, 3 + i, inheritable=False) for i, number in enumerate(moved)]
    os.closerange(3 + len(kept), max(map(int, os.listdir("/proc/self/fd"))) + 2)
    return kept


def _streams(output: int, errors: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(source, number, inheritable=True)
    os.close(nothing)
    os.close(output)
    os.close(errors)
    how = {"buffering": 1, "closefd": False, "encoding": "utf-8", "errors": "backslashreplace"}
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", **how)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", **how)  # noqa: SIM115


def _surroundings(wanted: dict) -> None:
    env = wanted["env"]
    os.environ.clear()
    os.environ.update(env)
    places = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:0] = [place for place in places if place not in sys.path]
    os.chdir(wanted["folder"])
    os.umask(wanted["umask"])
    for name, (soft, hard) in wanted["limits"].items():
        resource.setrlimit(getattr(resource, name), (soft, hard))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(_threads(env))
        if torch.distributed.is_available():
            torch.distributed.set_debug_level_from_env()


def _threads(env: dict) -> int:
    """Return the number of threads that OpenMP would use in a new process with this environment."""
    first = env.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
        return int(first)
    return max(1, len(os.sched_getaffinity(0)))


def _seed() -> None:
    """Give every child its own random numbers, as started processes have."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
