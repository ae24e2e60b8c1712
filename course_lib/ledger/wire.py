"""What really left this process: byte counters of its own gloo sockets, read from the kernel.

Linux keeps, for each TCP connection, how many bytes were written to it; a ledger reads them before
and after a call and books the difference as "moved". Lesson 01 holds its formulas against them.
"""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol

# Offsets in the kernel's `struct tcp_info` (linux/tcp.h); fields are only ever added at its end.
STATE = struct.Struct("=B")  # at 0
NOT_SENT = struct.Struct("=I")  # at 144: written by the process, not yet put on the wire
SENT = struct.Struct("=QQ")  # at 200: bytes put on the wire, and those of them that were repeats
LENGTH = 216
LISTENING = 10


class GlooSockets:
    """The connections of this process's gloo groups, and the bytes written to them.

    gloo alone gives its sockets the group's timeout as their receive timeout, so they are told
    apart from a store's, a web client's or a notebook's. Nothing is opened, kept or closed here:
    every reading asks the kernel about a descriptor by its number.
    """

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], tuple[int, int]] = {}  # (fd, inode): (first, last)
        self._ask = _kernel_query()
        self.scan(opening=True)

    @property
    def found(self) -> bool:
        """Whether there was any connection to read; without one, nothing is known."""
        return bool(self._written)

    def scan(self, opening: bool = False) -> None:
        """Look for connections made since. They count from their first byte."""
        if self._ask is None:
            return
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            inode = _socket_inode(fd)
            if inode is None or (fd, inode) in self._written or not self._has_timeout(fd):
                continue
            written = self._bytes_written(fd)
            if written is not None:
                self._written[fd, inode] = (written if opening else 0, written)

    def read(self) -> int:
        """Bytes written to gloo's connections since this object was made."""
        for (fd, inode), (first, _) in self._written.items():
            # A closed connection, or another file under its old number, keeps its last reading.
            if _socket_inode(fd) == inode:
                written = self._bytes_written(fd)
                if written is not None:
                    self._written[fd, inode] = (first, written)
        return sum(last - first for first, last in self._written.values())

    def _bytes_written(self, fd: int) -> int | None:
        info = self._ask(fd, socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if info is None or len(info) < LENGTH or STATE.unpack_from(info)[0] == LISTENING:
            return None
        sent, repeated = SENT.unpack_from(info, 200)
        return sent - repeated + NOT_SENT.unpack_from(info, 144)[0]

    def _has_timeout(self, fd: int) -> bool:
        timeout = self._ask(fd, socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
        return timeout is not None and any(timeout)


class InFlight(Protocol):
    """A call; `moved` is None until it is known that its bytes are counted."""

    must: int | float
    moved: int | None


class Flow:
    """Shares out the bytes that left this process among the calls then under way.

    With one call under way the share is what it sent. With several, the kernel cannot say whose a
    byte was: each gets its part in proportion to what it has to send. The sum is always exact.
    """

    def __init__(self) -> None:
        self._sockets = GlooSockets()
        self._lock = Lock()  # calls end on gloo's threads
        self._settled = 0
        self._under_way: list[InFlight] = []
        self._complete = True  # whether every call that had to send was counted
        self._closed = False

    def begin(self, call: InFlight, on_gloo: bool, new_group: bool) -> None:
        """A part of this call is about to be issued; `new_group`: it may have new connections."""
        with self._lock:
            if self._closed or any(other is call for other in self._under_way):
                return
            if new_group:
                self._sockets.scan()
            if call.must and not (on_gloo and self._sockets.found):
                self._complete = False
                return
            self._settle()
            call.moved = call.moved or 0
            self._under_way.append(call)

    def end(self, call: InFlight) -> None:
        with self._lock:
            if not self._closed:
                self._settle()
            self._under_way = [other for other in self._under_way if other is not call]

    def total(self) -> int | None:
        """Bytes since the beginning, by whatever call; None where they cannot be known."""
        with self._lock:
            if not self._closed:
                self._sockets.scan()
                self._settle()
            return self._settled if self._complete else None

    def close(self) -> None:
        self.total()
        self._closed = True

    def _settle(self) -> None:
        now = self._sockets.read()
        shares = split(now - self._settled, [call.must for call in self._under_way])
        for call, share in zip(self._under_way, shares, strict=True):
            if call.moved is not None:
                call.moved += share
        self._settled = now


def split(total: int, weights: Sequence[int | float]) -> list[int]:
    """`total` cut in proportion to `weights` (evenly if all are 0) into whole numbers."""
    if not any(weights):
        weights = [1] * len(weights)
    shares, so_far, weight_so_far = [], 0, 0.0
    for weight in weights:
        weight_so_far += weight
        up_to_here = round(total * weight_so_far / sum(weights))
        shares.append(up_to_here - so_far)
        so_far = up_to_here
    return shares


def _socket_inode(fd: int) -> int | None:
    try:
        status = os.fstat(fd)
    except OSError:  # closed in the meantime
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None


def _kernel_query() -> Callable[[int, int, int, int], bytes | None] | None:
    """A bare getsockopt(fd, level, option, length), or None where the kernel has no such counters.

    Python's own needs a socket object, which would close gloo's descriptor when it is collected, or
    a duplicate, which would keep a connection open that gloo has closed.
    """
    if not sys.platform.startswith("linux"):
        return None
    getsockopt = ctypes.CDLL(None).getsockopt

    def ask(fd: int, level: int, option: int, length: int) -> bytes | None:
        room, size = ctypes.create_string_buffer(length), ctypes.c_uint(length)
        if getsockopt(fd, level, option, room, ctypes.byref(size)) != 0:
            return None  # not a TCP socket, or none at all any more
        return room.raw[: size.value]

    return ask
