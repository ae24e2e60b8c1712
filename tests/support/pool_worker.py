"""One rank of the tests' pool: a process that waits for calls and answers them.

The main thread runs the calls; a second thread reads the pipe, so that this rank can say where it
stands, and end when the tests' process has gone, while the main thread waits inside a collective.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import os
import pickle
import queue
import random
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import ModuleType

import torch
import torch.distributed as dist

from course_classroom.ranks.lost_gpu import lost_gpu
from course_lib import ranks
from tests.support import devices
from tests.support.failures import Failure


def load(name: str, file: str) -> ModuleType:
    """The test's module under its own name, from its own file."""
    module = sys.modules.get(name)
    if module is None:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    if module is not None and os.path.samefile(module.__file__ or os.devnull, file):
        return module
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class Worker:
    """The rank's side of the pipe."""

    def __init__(self, pipe: Connection, rank: int, world: int, folder: str):
        self.pipe, self.rank, self.world, self.folder = pipe, rank, world, folder
        self.me: ranks.Me | None = None
        self.calls: queue.SimpleQueue = queue.SimpleQueue()
        self.sending = threading.Lock()
        # A group lives, and its sockets with it, while anything holds it: so only a weak reference.
        self.default_group: Callable[[], object] = lambda: None

    def say(self, kind: str, *content: object) -> None:
        sys.stdout.flush()  # what a call has printed is read when its answer comes
        with self.sending:
            self.pipe.send((kind, *content))

    def listen(self) -> None:
        """In a thread of its own: pass calls on, tell the stacks, leave when the pipe ends."""
        while True:
            try:
                kind, *content = self.pipe.recv()
            except (EOFError, OSError):
                # Nobody is left to hear anything, and the main thread may never wake up again.
                shutil.rmtree(self.folder, ignore_errors=True)
                with contextlib.suppress(OSError):  # other ranks may still be in the pool's folder
                    os.rmdir(os.path.dirname(self.folder))
                os._exit(1)
            if kind == "stacks":
                self.say("stacks", main_stack())
            else:
                self.calls.put((kind, content))

    def serve(self) -> None:
        threading.Thread(target=self.listen, daemon=True, name="pool-pipe").start()
        self.say("ready")
        while True:
            kind, content = self.calls.get()
            if kind == "join":
                self.join(*content)
            elif kind == "call":
                self.call(*content)
            elif kind == "tidy":
                destroy_groups_of_the_test()
            else:
                break
        self.leave()
        sys.stdout.flush()
        os._exit(0)  # nothing is left to tidy, and an orderly end of the interpreter takes seconds

    def leave(self) -> None:
        """Leave all groups at once: neighbours that wait for this rank then hear that it went."""
        try:
            ranks.stop()
        except Exception:
            traceback.print_exc()
        gc.collect()

    def join(self, rendezvous: str, timeout: float) -> None:
        try:
            self.leave()
            self.me = ranks.start(self.rank, self.world, rendezvous=rendezvous, timeout=timeout)
            self.default_group = weakref.ref(dist.group.WORLD)
        except BaseException as error:
            self.say("failed", Failure.of(self.rank, error))
            self.say("left")
        else:
            self.say("joined")

    def call(self, module: str, file: str, name: str, packed_args: bytes, seed: int) -> None:
        before, made = Surroundings(), devices.made()
        try:
            fn = getattr(load(module, file), name)
            args = devices.moved(pickle.loads(packed_args), self.me.device)
            seed_all(seed + 7919 * self.rank)
            with devices.default(self.me.device):
                result = devices.moved(fn(self.me, *args), "cpu")
            try:
                packed = pickle.dumps(result)
            except Exception as error:
                raise TypeError(
                    f"rank {self.rank}: the result of {name} is a {type(result).__name__} that "
                    f"cannot be sent back ({error}); return tensors, numbers, text or lists of them"
                ) from error
            del result, args
        except BaseException as error:
            failure, lost = Failure.of(self.rank, error), lost_gpu(str(error))
            # Frames hold groups, and a group that lives keeps the neighbours waiting for it.
            traceback.clear_frames(error.__traceback__)
            error.__traceback__ = error.__cause__ = error.__context__ = None
            del error
            before.restore()
            self.say("failed", failure, devices.made() - made)
            if not lost:
                self.leave()
            if lost or self.default_group() is not None:
                # Something of an earlier test holds the group, and its sockets open: neighbours
                # that wait for this rank would hear nothing. They do when the process is gone.
                # Without its GPU a process can neither leave an NCCL group nor run a later test.
                self.say("held")
                os._exit(0)  # its failure has been told
            self.say("left")
        else:
            before.restore()
            clean = dist.is_initialized() and dist.group.WORLD is self.default_group()
            self.say("done", packed, clean, time.monotonic(), devices.made() - made)


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


class Surroundings:
    """The process-wide settings that a test may change, to be put back after it."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.folder = os.getcwd()
        self.filters = list(warnings.filters)

    def restore(self) -> None:
        if dict(os.environ) != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        os.chdir(self.folder)
        warnings.filters[:] = self.filters
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        torch.set_num_threads(1)


def destroy_groups_of_the_test() -> None:
    """Every group but the default one; their order is the same on all ranks.

    Only when all ranks have answered: until then a neighbour may be using its own. And no later
    than that: the threads of a group wake up a hundred times a second for as long as it lives.
    """
    world = dist.group.WORLD
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not world:
            dist.destroy_process_group(group)


def main_stack() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident)
    return "".join(traceback.format_stack(frame)) if frame else "(the main thread has ended)\n"


def main() -> None:
    descriptor, rank, world, folder = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)
    forked(int(rank), int(world), folder, int(descriptor))


def forked(rank: int, world: int, folder: str, descriptor: int) -> None:
    """Serve as a rank, in this new process or in a child of the prepared one."""
    faulthandler.enable()  # a segmentation fault then leaves its stack in this rank's output
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    gc.freeze()  # what the imports made stays: a collection then looks at the tests' objects only
    Worker(Connection(descriptor), rank, world, folder).serve()


if __name__ == "__main__":
    # Under its own name, so that what tests import is this very module.
    from tests.support.pool_worker import main as main_of_the_module

    main_of_the_module()
