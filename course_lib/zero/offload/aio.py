"""DeepSpeed's asynchronous I/O as the files' layer: many requests under way from a thread of C++.

It is compiled at its first use (a minute), takes memory that is locked, and looks at no request's
own result: lengths are looked at here. So it is for who asks for it. Lesson 12.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from torch import Tensor

from course_lib.memory.words import this_rank
from course_lib.zero.offload.files import File, Files, Pending, Threads, check_aligned

BLOCK, DEPTH = 1 << 20, 32  # bytes of a request, and how many are under way


def layer(io: object) -> Files:
    """The layer of this name, or the object itself if it is one."""
    if not isinstance(io, str):
        return io
    if io not in ("threads", "aio"):
        raise ValueError(f"offload: io={io!r} is neither 'threads' nor 'aio'")
    return Threads() if io == "threads" else Asynchronous(_compiled())


def _compiled():
    """The operations as DeepSpeed loads them: compiled now, if they are not."""
    try:
        from deepspeed.ops.op_builder import AsyncIOBuilder

        return AsyncIOBuilder().load(verbose=False)
    except Exception as error:
        raise RuntimeError(
            f"offload: io='aio' needs DeepSpeed, a C++ compiler and libaio-dev ({error}); "
            "io='threads' needs none of them"
        ) from error


class Asynchronous:
    """Reads and writes each have a queue of their own; waiting for one waits for its queue."""

    name = "aio"

    def __init__(self, operations):
        self.bytes_read = self.bytes_written = 0
        self._reads = operations.aio_handle(BLOCK, DEPTH, False, True, 1)
        self._writes = operations.aio_handle(BLOCK, DEPTH, False, True, 1)
        self._under_way: dict[object, int] = {self._reads: 0, self._writes: 0}
        self._threads = Threads(threads=2)  # for syncing, and file systems without O_DIRECT

    def read(self, file: File, offset: int, into: Tensor) -> Pending:
        if not file.direct:
            return self._threads.read(file, offset, into)
        _whole(file)
        check_aligned(file, offset, into)
        self.bytes_read += into.numel()
        return self._begin(self._reads, "async_pread", file, offset, into)

    def write(self, file: File, offset: int, data: Tensor) -> Pending:
        if not file.direct:
            return self._threads.write(file, offset, data)
        check_aligned(file, offset, data)
        self.bytes_written += data.numel()
        return self._begin(self._writes, "async_pwrite", file, offset, data)

    def sync(self, files: Iterable[File]) -> Pending:
        files = list(files)
        for file in files:
            _whole(file)
        return self._threads.sync(files)

    def close(self) -> None:
        for queue in list(self._under_way):
            self._wait(queue)
        self._threads.close()

    def _begin(self, queue, call: str, file: File, offset: int, data: Tensor) -> Pending:
        if getattr(queue, call)(data, str(file.path), offset) != 0:
            raise OSError(errno.EIO, f"{this_rank()}: {call} of {file.path} was refused")
        self._under_way[queue] += 1
        return _Queued(self, queue, data)

    def _wait(self, queue) -> None:
        if self._under_way[queue]:
            queue.wait()
            self._under_way[queue] = 0


class _Queued(Pending):
    """All of a queue under way; the memory is kept until then."""

    def __init__(self, layer: Asynchronous, queue, memory: Tensor):
        self._layer, self._queue, self._memory = layer, queue, memory

    def wait(self) -> None:
        if self._memory is not None:
            self._layer._wait(self._queue)
            self._memory = None


def _whole(file: File) -> None:
    size = os.fstat(file.fd).st_size
    if size < file.nbytes:
        raise OSError(
            errno.EIO,
            f"{this_rank()}: {file.path} was made {file.nbytes} bytes long and now has {size}. "
            "Another process has changed it: the states are lost. Begin again from a checkpoint, "
            "in a folder of your own",
        )
