"""Make a forked process what a started one would be, and call the function that it is for.

Its own session, signals, streams, folder, limits and random numbers; no descriptor but its own.
What libraries have read from the environment when they were imported is applied by calls.
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
    """Run `wanted["target"]` in this fresh child; never returns.

    `descriptors` are the child's: what takes its output and what its complaints, then those that
    the target is given, then one that is closed as soon as all of this has been done.
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
            # Closed, or full: there is nobody left to tell.
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
            continue  # the C library keeps some for itself
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _only(descriptors: list[int]) -> list[int]:
    """Close every other descriptor; the kept ones, with new numbers from 3 on, in their order."""
    top = max([2, *descriptors]) + 1
    moved = []
    for number in descriptors:  # first out of the way, so that none lands on another
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
    """As many threads as OpenMP would take in a new process with this environment."""
    first = env.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
        return int(first)
    return max(1, len(os.sched_getaffinity(0)))


def _seed() -> None:
    """Give every child random numbers of its own, as started processes have them."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
