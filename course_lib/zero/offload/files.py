"""Files read and written without the page cache, in blocks, by a pool of threads.

The files use O_DIRECT if the file system supports it. Otherwise their cached pages are dropped
after every read and sync, so that no read is served from memory. Lesson 12 counts the bytes.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from course_lib.memory import tier
from course_lib.memory.formatting import this_rank
from course_lib.meta import host_of

ALIGN = 4096  # bytes; O_DIRECT requires multiples for addresses, offsets and lengths
BLOCK = 1 << 20
LARGER = "The disk is full: free some space, or choose a folder on a larger one"
ALLOWED = "Choose a folder in which this user may write"
REMEDIES = {
    errno.ENOSPC: LARGER,
    errno.EDQUOT: LARGER,
    errno.EFBIG: "The limit on the size of files is too low (ulimit -f): raise it",
    errno.EACCES: ALLOWED,
    errno.EPERM: ALLOWED,
    errno.EROFS: ALLOWED,
}


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def buffer(nbytes: int, device: torch.device) -> Tensor:
    """Return host bytes for a rank that computes on `device`, pinned if that is a GPU. Their
    address suits O_DIRECT, for which `ALIGN` extra bytes are allocated."""
    pinned = device.type == "cuda"
    with tier("host"):
        whole = torch.empty(
            nbytes + ALIGN, dtype=torch.uint8, device=host_of(device), pin_memory=pinned
        )
    first = -whole.data_ptr() % ALIGN
    return whole[first : first + nbytes]


@dataclass(frozen=True)
class File:
    """A file of this rank; `direct` means opened without the page cache."""

    path: Path
    fd: int
    nbytes: int
    direct: bool


class Pending:
    """Reads or writes in progress. `wait()` completes them and raises their first error."""

    def __init__(self, futures: Iterable[Future]):
        self._futures = list(futures)

    def wait(self) -> None:
        futures, self._futures = self._futures, []
        wait(futures)  # for all, even after a failure, because they use the memory
        for future in futures:
            future.result()


class Files:
    """Reads and writes with only the standard library, one block per call of a thread. Offsets,
    lengths and addresses are multiples of `ALIGN`."""

    def __init__(self, threads: int = 4, block: int = BLOCK):
        self.block = block
        self.bytes_read = self.bytes_written = self.syncs = 0  # as requested
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="offload")

    def read(self, file: File, offset: int, into: Tensor) -> Pending:
        check_aligned(file, offset, into)
        self.bytes_read += into.numel()
        return self._blocks(self._read, file, offset, into)

    def write(self, file: File, offset: int, data: Tensor) -> Pending:
        check_aligned(file, offset, data)
        self.bytes_written += data.numel()
        return self._blocks(self._write, file, offset, data)

    def sync(self, files: Sequence[File]) -> Pending:
        self.syncs += len(files)
        return self._synced(files)

    def close(self) -> None:
        self._pool.shutdown()

    def _blocks(self, call: Callable, file: File, offset: int, data: Tensor) -> Pending:
        return Pending(
            self._pool.submit(call, file, offset + first, data[first : first + self.block])
            for first in range(0, data.numel(), self.block)
        )

    def _synced(self, files: Sequence[File]) -> Pending:
        return Pending(self._pool.submit(self._sync, file) for file in files)

    def _read(self, file: File, offset: int, into: Tensor) -> None:
        memory, done = as_memory(into), 0
        while done < len(memory):
            with named("reading", file, offset, len(memory)):
                count = os.preadv(file.fd, [memory[done:]], offset + done)
            if count == 0 or (count % ALIGN and done + count < len(memory)):
                raise OSError(
                    errno.EIO,
                    f"{this_rank()}: {file.path} ended at byte {offset + done + count} in a read "
                    f"of {offset} to {offset + len(memory)}. It had {file.nbytes} bytes but is "
                    "shorter now, so another process has changed it and the states are lost. "
                    "Start again from a checkpoint, in a folder that only this run uses",
                )
            done += count
        if not file.direct:
            forget(file, offset, len(memory))

    def _write(self, file: File, offset: int, data: Tensor) -> None:
        memory, done = as_memory(data), 0
        while done < len(memory):
            with named("writing", file, offset, len(memory)):
                done += os.pwritev(file.fd, [memory[done:]], offset + done)

    def _sync(self, file: File) -> None:
        with named("syncing", file, 0, file.nbytes):
            getattr(os, "fdatasync", os.fsync)(file.fd)
        if not file.direct:
            forget(file, 0, file.nbytes)


class CountedFiles(Files):
    """A counter of requested bytes that reads and writes nothing, for a dry run of shapes."""

    def _blocks(self, call: Callable, file: File, offset: int, data: Tensor) -> Pending:
        return Pending([])

    def _synced(self, files: Sequence[File]) -> Pending:
        return Pending([])


@contextmanager
def named(doing: str, file: File, offset: int, nbytes: int) -> Iterator[None]:
    """Add the operation and a remedy to an OSError raised in the block."""
    try:
        yield
    except OSError as error:
        remedy = REMEDIES.get(error.errno, "Check the disk, or choose a folder on a different one")
        raise OSError(
            error.errno,
            f"{this_rank()}: {doing} bytes {offset} to {offset + nbytes} of {file.path} "
            f"failed ({error.strerror or error}). {remedy}",
        ) from error


def check_aligned(file: File, offset: int, data: Tensor) -> None:
    crooked = offset % ALIGN or data.numel() % ALIGN or data.data_ptr() % ALIGN
    if crooked or data.dtype != torch.uint8 or offset + data.numel() > file.nbytes:
        raise ValueError(
            f"bytes {offset} to {offset + data.numel()} of {file.path}, which has {file.nbytes}: "
            f"offset, length and address must be multiples of {ALIGN}, within the file, in uint8"
        )


def as_memory(data: Tensor) -> memoryview:
    """Return a tensor's bytes for system calls."""
    return memoryview((ctypes.c_char * data.numel()).from_address(data.data_ptr())).cast("B")


def forget(file: File, offset: int, nbytes: int) -> None:
    """Empty the page cache for a part of a file, if the system supports it."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fd, offset, nbytes, os.POSIX_FADV_DONTNEED)


def make(path: Path, nbytes: int) -> File:
    """Create a file with all its bytes reserved, so that a full disk fails here, not later."""
    flags, direct = os.O_RDWR | os.O_CREAT | os.O_EXCL, True
    try:
        fd = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o600)
        direct = hasattr(os, "O_DIRECT")
    except OSError as error:
        if error.errno != errno.EINVAL:  # without O_DIRECT the file may still exist
            raise
        path.unlink(missing_ok=True)
        fd, direct = os.open(path, flags, 0o600), False
    file = File(path, fd, nbytes, direct)
    try:
        with named("reserving", file, 0, nbytes):
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, nbytes)
            else:
                os.ftruncate(fd, nbytes)
    except OSError:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return file
