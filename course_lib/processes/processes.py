"""The start of a process: a fork of a prepared one if that is safe, or a new interpreter.

COURSE_START=spawn never forks, and COURSE_START=fork forks even on a CUDA build. `why_spawned`
explains the difference; learners do not notice it.
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

# The imports of every rank, including torch's compiler and checkpoint modules, which an answer's
# first optimizer would otherwise import within its time limit.
MODULES = (
    "torch._dynamo",
    "torch.utils.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.tensor",
    "course_lib.ranks",
)
# Read when a process or a library starts, so a child of a process with other values differs.
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
        self.retired: list[Preparer] = []  # no longer used, but running while children may live
        self.reasons: dict[tuple, str] = {}  # why a kind of them cannot be used

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
    """Start the imports for later children in the background; return at once."""
    if not why_spawned():
        with contextlib.suppress(OSError):  # no resources; the later request for a child reports it
            _preparer((*MODULES, *modules), odd)


def start(
    wanted: Wanted, command: list[str], *, modules: tuple[str, ...] = (), odd: bool = False
) -> Child | subprocess.Popen:
    """Start the `wanted` child, or `command` if forking is not possible.

    With `odd`, a forked child has a different hash seed, so strings are hashed differently.
    """
    reason = why_spawned() or why_other(wanted.env)
    for _ in range(0 if reason else 2):  # a prepared process that was killed is replaced, once
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
    """End this process's prepared processes, and all of their children."""
    _prepared.close()


def ready(modules: tuple[str, ...] = (), *, odd: bool = False) -> None:
    """Wait until a child can start at once; return immediately if none will be forked."""
    if not why_spawned():
        with contextlib.suppress(NotPrepared, OSError):
            _preparer((*MODULES, *modules), odd).wait_ready()


def pids() -> list[int]:
    """Return the ids of the living prepared processes."""
    return [one.process.pid for one in _prepared.kept.values() if one.alive()]


def why_spawned() -> str:
    """Explain why processes are not forked here; empty if they are."""
    asked = os.environ.get("COURSE_START", "")
    if asked not in ("", "fork", "spawn"):
        raise ValueError(f"COURSE_START={asked!r} must be fork or spawn, or unset")
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
    """Return the reason why a forked child cannot get this environment, or an empty string."""
    names = {name for name in {*env, *os.environ} if _READ_AT_START.match(name)}
    other = sorted(name for name in names if env.get(name) != os.environ.get(name))
    return f"{', '.join(other)} would come too late" if other else ""


def _preparer(modules: tuple[str, ...], odd: bool) -> Preparer:
    if _prepared.of != os.getpid():
        _prepared.__init__()
    with _prepared.lock:
        preparer = _prepared.kept.get((modules, odd))
        # Environment variables that are read at process start may have changed.
        if preparer is not None and (not preparer.alive() or _why_not_its(preparer.env)):
            _prepared.retired.append(preparer)  # its children continue
            preparer = None
        if preparer is None:
            # A different seed from any process that chose its own at random, and never the same.
            seed = zlib.crc32(os.urandom(8)) if odd else None
            preparer = _prepared.kept[modules, odd] = Preparer(modules, seed)
        return preparer


def _why_not_its(env: dict[str, str]) -> str:
    both = {**env, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED")}  # odd ones have a seed
    return why_other(both)


def spawn(wanted: Wanted, command: list[str]) -> subprocess.Popen:
    """Start a new interpreter, in which the given descriptors keep their numbers."""
    return subprocess.Popen(
        command,
        env=wanted.env,
        cwd=wanted.folder,
        stdin=subprocess.DEVNULL,
        stdout=wanted.output,
        stderr=wanted.descriptors()[1],
        pass_fds=wanted.given,
        # A separate session, because Ctrl-C in a terminal goes to the notebook, which forwards it.
        start_new_session=True,
    )


atexit.register(_prepared.close)
