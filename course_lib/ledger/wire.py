"""The bytes that actually left this process, from the kernel's counters of its gloo sockets.

Linux counts the bytes written to each TCP connection. A ledger reads these counters before and
after a call and books the difference as "moved". Lesson 01 compares its formulas with them.
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

# Offsets in the kernel's `struct tcp_info` (linux/tcp.h), which only ever grows at its end.
STATE = struct.Struct("=B")  # at 0
NOT_SENT = struct.Struct("=I")  # at 144: written by the process, not yet put on the wire
SENT = struct.Struct("=QQ")  # at 200: bytes put on the wire, and how many of them were repeats
LENGTH = 216
LISTENING = 10


class GlooSockets:
    """The connections of this process's gloo groups, and the bytes written to them.

    Only gloo gives its sockets the group's timeout as their receive timeout, which distinguishes
    them from the sockets of a store, a web client or a notebook. This class opens and closes no
    socket. Each reading queries the kernel with a descriptor's number.
    """

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], tuple[int, int]] = {}  # (fd, inode): (first, last)
        self._ask = _kernel_query()
        self.scan(opening=True)

    @property
    def found(self) -> bool:
        """True if any gloo connection was found; otherwise the bytes are unknown."""
        return bool(self._written)

    def scan(self, opening: bool = False) -> None:
        """Look for new connections, whose bytes count from the first."""
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
        """Return the bytes written to gloo's connections since this object was created."""
        for (fd, inode), (first, _) in self._written.items():
            # A closed connection keeps its last reading, even if its number is used again.
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
    """A call in progress; `moved` stays None unless its bytes are counted."""

    must: int | float
    moved: int | None


class Flow:
    """The bytes that left this process, divided among the calls in progress.

    If only one call is in progress, it gets exactly the bytes it sent. The kernel cannot separate
    several calls, so each gets a share in proportion to the bytes it must send. Their sum is exact.
    """

    def __init__(self) -> None:
        self._sockets = GlooSockets()
        self._lock = Lock()  # calls end on gloo's threads
        self._settled = 0
        self._under_way: list[InFlight] = []
        self._complete = True  # True if every call that must send was counted
        self._closed = False

    def begin(self, call: InFlight, on_gloo: bool, new_group: bool) -> None:
        """Announce that part of this call is being issued; a new group may add connections."""
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
        """Return the bytes sent by all calls since the beginning, or None if they are unknown."""
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
    """Split `total` into integers in proportion to `weights` (evenly if all are 0)."""
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
    """Return a bare getsockopt(fd, level, option, length), or None without such counters.

    Python's own function needs a socket object, which would close gloo's descriptor when collected,
    or a duplicate descriptor, which would keep a connection open after gloo has closed it.
    """
    if not sys.platform.startswith("linux"):
        return None
    getsockopt = ctypes.CDLL(None).getsockopt

    def ask(fd: int, level: int, option: int, length: int) -> bytes | None:
        room, size = ctypes.create_string_buffer(length), ctypes.c_uint(length)
        if getsockopt(fd, level, option, room, ctypes.byref(size)) != 0:
            return None  # not a TCP socket, or closed by now
        return room.raw[: size.value]

    return ask
