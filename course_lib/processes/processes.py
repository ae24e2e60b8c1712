"""Start a process, by forking a prepared one where that is safe, else as a new interpreter.

COURSE_START=spawn never forks, COURSE_START=fork does so on a CUDA build too. What differs is told
by `why_spawned`; what a learner sees does not.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import subprocess
import sys
import threading
import zlib

from course_lib.processes.client import Child, NotPrepared, Preparer, Wanted
from course_lib.processes.torch_build import gpu_build

# What every rank imports; torch's compiler and checkpoints too, which an answer's first optimizer
# would otherwise import within its time.
MODULES = (
    "torch._dynamo",
    "torch.utils.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.tensor",
    "course_lib.ranks",
)
# Read when a process or a library starts: a child of a process that had others is another one.
_READ_AT_START = re.compile(
    r"(PYTHON(?!PATH$)|LD_|MALLOC_|GLIBC_|MKL_(?!NUM_THREADS)|KMP_|GOMP_|OMP_(?!NUM_THREADS)"
    r"|OPENBLAS_(?!NUM_THREADS)|TORCH_CPP_|TORCHDYNAMO_|TORCHINDUCTOR_|TORCH_LOGS|PYTORCH_|ATEN_)"
)


class _Prepared:
    """The prepared processes of this process; a fork of it starts with none."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.of = os.getpid()
        self.kept: dict[tuple, Preparer] = {}
        self.retired: list[Preparer] = []  # no longer asked, and not ended while children may live
        self.reasons: dict[tuple, str] = {}  # why a kind of them is of no use

    def close(self) -> None:
        if self.of != os.getpid():
            return
        with self.lock:
            ended = [*self.kept.values(), *self.retired]
            self.kept, self.retired = {}, []
            for preparer in ended:
                preparer.close()


_prepared = _Prepared()


def prepare(modules: tuple[str, ...] = (), *, odd: bool = False) -> None:
    """Begin to import in the background, for children that will be wanted; returns at once."""
    if not why_spawned():
        with contextlib.suppress(OSError):  # no room: whoever wants a child will hear of it
            _preparer((*MODULES, *modules), odd)


def start(
    wanted: Wanted,
    command: list[str],
    *,
    modules: tuple[str, ...] = (),
    odd: bool = False,
) -> Child | subprocess.Popen:
    """Start what is `wanted`, or `command` where forking is not possible.

    `odd` takes it from a process with another hash secret, for strings and what is sorted by them.
    """
    reason = why_spawned() or why_other(wanted.env)
    for _ in range(0 if reason else 2):  # a prepared process that was killed is made anew, once
        kind = (*MODULES, *modules), odd
        if kind in _prepared.reasons:
            break
        preparer = _preparer(*kind)
        try:
            return preparer.child(wanted)
        except NotPrepared as why:
            if preparer.alive():
                _prepared.reasons[kind] = str(why)
                _prepared.retired.append(_prepared.kept.pop(kind, preparer))
    return spawn(wanted, command)


def close() -> None:
    """End the prepared processes of this process, and all of their children."""
    _prepared.close()


def ready(modules: tuple[str, ...] = (), *, odd: bool = False) -> None:
    """Wait until a child can be had at once; returns at once where none will be forked."""
    if not why_spawned():
        with contextlib.suppress(NotPrepared, OSError):
            _preparer((*MODULES, *modules), odd).wait_ready()


def pids() -> list[int]:
    """The prepared processes that live."""
    return [one.process.pid for one in _prepared.kept.values() if one.alive()]


def why_spawned() -> str:
    """Why processes are not forked here, in words; empty where they are."""
    asked = os.environ.get("COURSE_START", "")
    if asked not in ("", "fork", "spawn"):
        raise ValueError(f"COURSE_START={asked!r}: say fork or spawn, or leave it unset")
    if asked == "spawn":
        return "COURSE_START=spawn asks for it"
    if not sys.platform.startswith("linux"):
        return f"forking is not safe on {sys.platform}"
    if not hasattr(os, "pidfd_open") or not _pidfds():
        return "this kernel has no process descriptors (Linux 5.3 and later)"
    if not asked and gpu_build():
        return "this torch is built for GPUs; COURSE_START=fork tries it"
    return ""


def _pidfds() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def why_other(env: dict[str, str]) -> str:
    """Why a child could not have this environment: some of it is read before any of our lines."""
    names = {name for name in {*env, *os.environ} if _READ_AT_START.match(name)}
    other = sorted(name for name in names if env.get(name) != os.environ.get(name))
    return f"{', '.join(other)} would come too late" if other else ""


def _preparer(modules: tuple[str, ...], odd: bool) -> Preparer:
    if _prepared.of != os.getpid():
        _prepared.__init__()
    with _prepared.lock:
        preparer = _prepared.kept.get((modules, odd))
        # What the environment says about the start of a process may have changed since.
        if preparer is not None and (not preparer.alive() or _why_not_its(preparer.env)):
            _prepared.retired.append(preparer)  # its children go on
            preparer = None
        if preparer is None:
            # Another secret than any process that took its own by chance, and never the same.
            seed = zlib.crc32(os.urandom(8)) if odd else None
            preparer = _prepared.kept[modules, odd] = Preparer(modules, seed)
        return preparer


def _why_not_its(env: dict[str, str]) -> str:
    both = {**env, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED")}  # which an odd one is given
    return why_other(both)


def spawn(wanted: Wanted, command: list[str]) -> subprocess.Popen:
    """A new interpreter; descriptors given to it are passed on under their numbers."""
    return subprocess.Popen(
        command,
        env=wanted.env,
        cwd=wanted.folder,
        stdin=subprocess.DEVNULL,
        stdout=wanted.output,
        stderr=wanted.descriptors()[1],
        pass_fds=wanted.given,
        # Its own session: Ctrl-C in a terminal goes to the notebook, which passes it on.
        start_new_session=True,
    )


atexit.register(_prepared.close)
